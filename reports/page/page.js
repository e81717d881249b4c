"use strict";
// Everything is readable without this: it adds buttons that sort, a field that searches, and buttons that copy.
for (const pre of document.querySelectorAll("pre.copy")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copying";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy: " + pre.getAttribute("aria-label"));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(pre);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  pre.after(button);
}

const numberIn = (text) => {
  const found = text.replace(/,/g, "").replace("\u2212", "-").match(/^[<>]?\s*([+-]?\d*\.?\d+(?:e[+-]?\d+)?)/i);
  return found ? Number(found[1]) : null;
};

for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  if (original.length > 1) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const before = cell.getAttribute("aria-sort");
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        if (before === "descending") {
          body.append(...original);
          return;
        }
        const sign = before === "ascending" ? -1 : 1;
        cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const keyed = original.map((row) => [row.cells[column].textContent.trim(), row]);
        keyed.sort(([a], [b]) => {
          const x = numberIn(a), y = numberIn(b);
          if (x !== null && y !== null) return sign * (x - y);
          if (x !== null || y !== null) return x !== null ? -1 : 1;
          return sign * a.localeCompare(b);
        });
        body.append(...keyed.map(([, row]) => row));
      });
    });
  }
  if (original.length > 8) {
    const label = document.createElement("label");
    label.className = "find";
    label.textContent = "Search";
    const input = document.createElement("input");
    input.type = "search";
    label.append(input);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of original) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    table.closest(".wide").before(label);
  }
}
