"""The one way into every command: whatever happens, the user gets one sentence and an exit code.

    def main(arguments=None):
        return enter(chosen, arguments)      # chosen reads the arguments and returns a function that does the work

    0, 1     what the command returns
    2        bad input, output that cannot be printed, or an unforeseen error; its traceback is in a file,
             which the sentence names
    128 + n  signal n asked for the end, whenever it came: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 131
             after SIGQUIT

This module imports only a little of the standard library, so that Ctrl-C works from the start: import the rest
in `chosen`.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from cemverify.console.errors import Refusal
from cemverify.console.escaping import one_line
from cemverify.console.interrupts import WORDS, Ended

Run = Callable[[], int]

written: dict[str, None] = {}  # files that the command has written so far, as the user named them

# Packages whose ValueErrors are sentences for the user.
_OURS = ("cemverify", "synthetic", "reports", "benchmarks")


def enter(chosen: Callable[[list[str]], Run], arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; never raises, except `SystemExit` after --help and --version.

    Args:
        chosen: reads the arguments and returns what runs the command. arguments: by default the command line's.
    """
    ended = Ended(_run)
    written.clear()
    with ended.heeded(to_the_end=arguments is None), _streams() as (stdout, stderr):
        try:
            code = _run(chosen, list(sys.argv[1:] if arguments is None else arguments))
        except SystemExit:
            stdout.flush()
            if not stdout.failure:
                raise
            ended.over()
            code = 0
        except BaseException as error:
            ended.over()
            code = _tell(error, ended.by)
        else:
            ended.over()
            if ended.by is not None:  # the signal came too late, or a library swallowed the exception
                say(f"{WORDS[ended.by.name]} when all was done; what was asked for is complete")
                code = 128 + ended.by
        stdout.flush()
        if stdout.failure and code in (0, 1):
            say(f"the result cannot be printed ({stdout.failure}); files that were asked for are complete")
            code = 2
        stderr.flush()
    return code


def say(sentence: str) -> None:
    """Prints a sentence about an error on stderr, always on a line of its own."""
    fresh = "\n" if getattr(sys.stderr, "in_line", False) else ""
    print(f"{fresh}error: {one_line(sentence)}", file=sys.stderr, flush=True)


@contextmanager
def importing() -> Iterator[None]:
    """Imports without the garbage collector, which would repeatedly visit all that stays."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def _run(chosen: Callable[[list[str]], Run], arguments: list[str]) -> int:
    try:
        os.getcwd()
    except OSError as error:
        raise Refusal(f"the current folder is gone ({error.strerror}); change to one that exists") from None
    _demote_warnings()
    run = chosen(arguments)  # --help and --version exit here
    try:
        return int(run())
    except SystemExit as error:
        raise Refusal(
            f"the code that was run called sys.exit({error.code!r}) before there was a result; remove that call"
        ) from error


def _tell(error: BaseException, ended_by: signal.Signals | None) -> int:
    """Reports what happened; returns the exit code."""
    if ended_by is None and isinstance(error, KeyboardInterrupt):
        ended_by = signal.SIGINT
    if ended_by is not None:
        # or an exception that a library made from it; an earlier one that was dealt with is ignored
        if any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
            words = str(error) if isinstance(error, KeyboardInterrupt) else ""
            say(words or f"{WORDS[ended_by.name]}; {_left_behind()}")
        else:  # the exception was swallowed, and what followed from that is not reported
            say(f"{WORDS[ended_by.name]}; {one_line(str(error)) or type(error).__name__}")
        return 128 + ended_by
    if usage := getattr(error, "usage", ""):
        print(usage, file=sys.stderr)
    if isinstance(error, Refusal) or is_our_sentence(error):
        say(str(error))
    elif isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "can't allocate" in str(error):
        say(f"memory ran out ({str(error).splitlines()[0] if str(error) else 'MemoryError'}); ask for less")
    elif (sentence := _denied(error)) is not None:
        say(sentence)
    else:
        name = ": ".join(filter(None, (type(error).__name__, str(error)[:300])))
        say(f"something unforeseen happened ({name}); {_keep_traceback(error)}")
    return 2


def _left_behind() -> str:
    """The files that a command had written before it was ended."""
    named, more = list(written)[:3], len(written) - 3
    if not named:
        return "nothing was written"
    return f"written before that: {', '.join(named)}{f' and {more} more' if more > 0 else ''}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and all others that led to it."""
    met: set[int] = set()
    causes: list[BaseException | None] = [error]
    while causes:
        cause = causes.pop()
        if cause is None or id(cause) in met:
            continue
        yield cause
        met.add(id(cause))
        causes += [cause.__cause__, cause.__context__]
        causes += cause.exceptions if isinstance(cause, BaseExceptionGroup) else []


def is_our_sentence(error: BaseException) -> bool:
    """Whether it is a ValueError that our own code raised, not a library."""
    trace = error.__traceback__
    if not isinstance(error, ValueError) or isinstance(error, UnicodeError) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0] in _OURS


# What the system may deny any program, whatever it does.
_DENIED = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN)


def _denied(error: BaseException) -> str | None:
    """What the system denied, if that is the cause."""
    for cause in _causes(error):
        for number in _DENIED:
            # an error in loading a library says it only in words
            if getattr(cause, "errno", None) == number or (
                isinstance(cause, ImportError) and os.strerror(number) in str(cause)
            ):
                return f"the system allows no more: {os.strerror(number)}; `ulimit -a` and `df` show what it allows"
    return None


def _keep_traceback(error: BaseException) -> str:
    """Writes the traceback to a file; returns a sentence that says where."""
    import tempfile
    import traceback

    lines = traceback.format_exception(error)
    try:
        number, path = tempfile.mkstemp(prefix="cemverify-traceback-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(lines)
    except OSError as failed:
        return f"its traceback cannot be written ({failed.strerror or failed})"
    return f"please report it with its traceback, {path}"


def _demote_warnings() -> None:
    """Makes no warning an error, here and in workers: with PYTHONWARNINGS=error, libraries cannot be imported."""
    if any(option.startswith("error") for option in sys.warnoptions):
        import warnings

        sys.warnoptions[:] = [option for option in sys.warnoptions if not option.startswith("error")]
        os.environ.pop("PYTHONWARNINGS", None)
        warnings.resetwarnings()
        warnings.simplefilter("default")
        print("note: warnings are shown, and not made errors, whatever PYTHONWARNINGS and -W ask", file=sys.stderr)


# --- streams --------------------------------------------------------------------------------------


class Patient:
    """A text stream to which writing never fails; it remembers why it could not write, and goes on."""

    def __init__(self, stream: TextIO | None) -> None:
        self.failure = ""  # why it can no longer write. A reader that leaves, such as `head`, is no failure
        self.in_line = False  # whether a line has begun and may not have ended, for example at an interrupt
        self._closed = stream is None
        self._stream = stream if stream is not None else open(os.devnull, "w")  # noqa: SIM115
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Writes what can be written; characters that the encoding lacks are escaped."""
        if self._closed:
            self.failure = "it is closed"
        self.in_line = True
        self._try(lambda: self._stream.write(text))
        self.in_line = not text.endswith(("\n", "\r", "\r\033[K"))  # ended, or to be overwritten
        return len(text)

    def flush(self) -> None:
        """Flushes what can be flushed."""
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except (OSError, ValueError) as error:
            if not isinstance(error, BrokenPipeError):
                self.failure = getattr(error, "strerror", None) or str(error)
            with suppress(OSError, ValueError):  # later output is dropped, and the flush at exit raises no error
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextmanager
def _streams() -> Iterator[tuple[Patient, Patient]]:
    """stdout and stderr as patient streams. Descriptors 0 to 2 are open, for children too, so no file gets one."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
    before = sys.stdout, sys.stderr
    stdout, stderr = Patient(sys.stdout), Patient(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, stdout), cast(TextIO, stderr)
    try:
        yield stdout, stderr
    finally:
        sys.stdout, sys.stderr = before
