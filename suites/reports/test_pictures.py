"""Pictures: one statement each, well-formed SVG without scripts or fonts to fetch, and the data beside them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from cemverify.results.envelope import write
from reports.pictures import pictures_of
from suites.kit.colours import contrast
from suites.kit.commands import Told
from suites.reports.examples import MAKERS, a_language, a_readings, a_recursion
from synthetic.figures.drawing import COLOURS, STYLE, WIDTH, inline
from synthetic.studies.recursion import pictures
from synthetic.studies.recursion.tables import headline, sheets

NAMES = {
    "recursion": "rmse-against-T",
    "language": "loss-curves",
    "study": "ratios",
    "readings": "ratios",
    "benchmarks": "roofline",
}
# with mathematics, with markup, or long
HOSTILE = ("<script>alert(1)</script>", r"$\frac{1}{0", "a" * 10_000, "\x1b[31mred\x00", "{{ 7 * 7 }}", "_^")


@pytest.mark.parametrize("kind", NAMES)
def test_each_kind_has_its_pictures_which_say_what_they_show_and_carry_their_data(kind: str) -> None:
    pictures = pictures_of(a_language(dict.fromkeys(HOSTILE, 2.9)) if kind == "language" else MAKERS[kind]())
    assert [picture.name for picture in pictures] == NAMES[kind].split()
    for picture in pictures:
        root = ElementTree.fromstring(picture.svg)  # noqa: S314
        assert picture.title.split()[0] in " ".join("".join(root.itertext()).split())
        assert "@font-face" not in picture.svg
        assert "\x1b" not in picture.svg
        assert len(picture.svg) < 100_000
        assert not [e for e in root.iter() if e.tag.endswith(("script", "image", "foreignObject"))]
        rows = list(csv.reader(io.StringIO(picture.csv)))
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}


def two_priors() -> Any:
    """A study whose second prior has errors ten times those of the first."""
    content = a_recursion()
    prior = {"prior": "0.5*rbf + 0.4*periodic + 0.1*matern52 + 0.1*rational-quadratic"}
    for row in content["rows"][:]:
        tenfold = {name: {**row[name], "mean": 10 * row[name]["mean"]} for name in ("rmse", "observed", "excess")}
        content["rows"].append({**row, **prior, **tenfold})
    return content


@pytest.mark.parametrize("make", [*MAKERS.values(), two_priors])
def test_every_point_lies_within_its_axes_and_every_title_is_whole(make: Callable[[], Any]) -> None:
    for picture in pictures_of(make()):
        with matplotlib.rc_context(dict(STYLE)):
            figure = Figure(figsize=(WIDTH, picture.height), layout="constrained")
            picture.draw(figure)
            figure.canvas.draw()
            for axis in figure.axes:
                inside = axis.bbox.padded(0.5)
                for line in (line for line in axis.lines if line.get_clip_on()):
                    points = line.get_transform().transform(line.get_xydata())
                    assert all(inside.contains(*point) for point in points), (picture.name, axis.get_title("left"))
            assert "".join(figure.get_suptitle().split()) == "".join(picture.title.split())
            titles = [text for text in figure.findobj(Text) if text.get_fontweight() == "bold" and text.get_text()]
            assert len(titles) >= 1
            for title in titles:
                assert "..." not in title.get_text()
                assert figure.bbox.padded(0.5).containsx(title.get_window_extent().x1), title.get_text()
                assert figure.bbox.padded(0.5).containsy(title.get_window_extent().y1), title.get_text()


def test_the_same_data_gives_the_same_bytes_and_leaves_the_callers_settings_alone() -> None:
    content = a_readings()
    with matplotlib.rc_context({"backend": "pdf", "font.size": 33}):
        first = pictures_of(content)[0].svg
        assert matplotlib.rcParams["font.size"] == 33
        assert matplotlib.get_backend() == "pdf"
    assert pictures_of(content)[0].svg == first


def test_inside_a_page_a_picture_takes_the_pages_colours_and_shares_no_names() -> None:
    svg = pictures_of(a_readings())[0].svg
    first, second = inline(svg, "one-"), inline(svg, "two-")
    ids = [{e.attrib["id"] for e in ElementTree.fromstring(s).iter() if "id" in e.attrib} for s in (first, second)]  # noqa: S314
    assert ids[0]
    assert not ids[0] & ids[1]
    assert "var(--ink" in first
    assert "patch_1" not in first
    assert not re.search("fill: *(#fff|white)", first), "a white surface on a dark page"
    assert " width=" not in first.partition(">")[0]


def test_colours_are_told_apart_in_grey() -> None:
    """Neighbours in the list differ in lightness; if colours are close, markers differ too."""
    assert min(contrast(one, other) for one, other in combinations(COLOURS[:4], 2)) > 1.08


def test_pictures_are_written_with_their_data(tmp_path: Path, told: Told) -> None:
    write(tmp_path / "r.json", a_readings())
    for kind, magic in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        folder = tmp_path / ("pictures" if kind == "svg" else kind)
        words = "" if kind == "svg" else f"--format {kind} --output {folder}"
        drawn = []
        for _ in range(2):
            printed = told(f"reports pictures {tmp_path / 'r.json'} {words}").out
            assert f"r-ratios.{kind}: recursion: 0 of 1 comparisons favour the model" in printed
            assert {path.name for path in folder.iterdir()} == {f"r-ratios.{kind}", "r-ratios.csv"}
            drawn.append((folder / f"r-ratios.{kind}").read_bytes())
        assert drawn[0] == drawn[1]
        assert drawn[0].startswith(magic)


def test_title_and_headline_name_the_least_mean_and_each_depth_that_the_table_decides() -> None:
    content = a_recursion()
    row = content["rows"][6]
    assert row["deeper"]["n"] == 6
    sure = {**row["deeper"], "conclusion": "worse", "ratio": {"mean": 1.2, "low": 1.15, "high": 1.26}}
    # the least mean is a geometric one, as for ratios
    content["rows"].append({**row, "depth": 8, "rmse": {**row["rmse"], "mean": 0.01}, "deeper": sure})
    least, decided = headline(content).split("; ", 1)
    assert re.fullmatch(r"On rbf, CEM's RMSE divided by that at T = 2: .* at T = 4, inconclusive", least)
    assert decided == "1.20 [1.15, 1.26] at T = 8, worse; one learning rate was tried"
    assert pictures_of(content)[0].title == headline(content)


def test_a_picture_says_what_it_leaves_out_and_has_the_steps_of_its_table() -> None:
    content = a_recursion()
    row = content["rows"][6]
    row["runs"][0]["at_depth"][15] = 3e9
    row["rmse"]["std"] = 1.0
    content["rows"].append({**row, "depth": None, "contender": {**row["contender"], "family": "mymodel:mlp"}})
    (against,) = pictures_of(content)
    assert "only in the tables: mymodel:mlp" in against.svg
    reached, edge = (max(float(str(y[i] or 0)) for y in against.data.rows) for i in (5, 3))
    assert f"intervals are cut off at {3 * edge:.2g} (they reach {reached:.2g})" in against.svg
    (panel,) = pictures.panels(pictures.other_steps, content)
    assert re.search(r"errors above [\d.]+ are not shown \(up to 5e\+08\)", panel.x_label)
    (names,) = [[c.name for c in sheet.columns] for sheet in sheets(content) if "with T' steps" in sheet.title]
    assert {f"T' = {steps}" for curve in panel.curves for steps in curve.x} <= set(names)
