"""The one way into every command: whatever happens, the user gets one sentence and an exit code.

    def main(arguments=None):
        return enter(chosen, arguments)      # chosen reads the arguments and returns what is to be done

    0, 1     what the command returns
    2        bad input, output that cannot be printed, or an error that nobody foresaw; its traceback is in a file,
             which the sentence names
    128 + n  signal n asked for the end, at any moment: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 131
             after SIGQUIT

Only the standard library is imported here, and little of it, so that Ctrl-C is heeded from the start: import the rest
in `chosen`.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from cemverify.console.errors import Refusal
from cemverify.console.escaping import one_line
from cemverify.console.interrupts import WORDS, Ended

Run = Callable[[], int]

# Packages whose ValueErrors are sentences for the user.
_OURS = ("cemverify", "synthetic", "reports", "benchmarks")


def enter(chosen: Callable[[list[str]], Run], arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; never raises, except `SystemExit` after --help and --version.

    Args:
        chosen: reads the arguments and returns what runs the command. arguments: of the command line if None.
    """
    ended = Ended(_run)
    with ended.heeded(to_the_end=arguments is None), _streams() as (stdout, stderr):
        try:
            code = _run(chosen, list(sys.argv[1:] if arguments is None else arguments))
        except SystemExit:
            stdout.flush()
            raise
        except BaseException as error:
            ended.over()
            code = _tell(error, ended.by)
        else:
            ended.over()
            if ended.by is not None:  # it came too late, or a library swallowed it
                say(f"{WORDS[ended.by.name]} when all was done; what was asked for is complete")
                code = 128 + ended.by
        stdout.flush()
        if stdout.failure and code in (0, 1):
            say(f"the result cannot be printed ({stdout.failure}); files that were asked for are complete")
            code = 2
        stderr.flush()
    return code


def say(sentence: str) -> None:
    """Prints a sentence about an error on stderr, on one line of its own whatever it contains."""
    fresh = "\n" if getattr(sys.stderr, "in_line", False) else ""
    print(f"{fresh}error: {one_line(sentence)}", file=sys.stderr, flush=True)


@contextmanager
def importing() -> Iterator[None]:
    """Imports without the garbage collector: it would look through what stays, again and again."""
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
    """Says what happened; returns the exit code."""
    if ended_by is None and isinstance(error, KeyboardInterrupt):
        ended_by = signal.SIGINT
    if ended_by is not None:
        if _follows_interrupt(error):
            words = str(error) if isinstance(error, KeyboardInterrupt) else ""
            say(words or f"{WORDS[ended_by.name]}; nothing was written")
        else:  # the exception was swallowed, and what came of it is no news
            say(f"{WORDS[ended_by.name]}; {one_line(str(error)) or type(error).__name__}")
        return 128 + ended_by
    if usage := getattr(error, "usage", ""):
        print(usage, file=sys.stderr)
    if isinstance(error, Refusal) or _is_our_sentence(error):
        say(str(error))
    elif _is_memory(error):
        say(f"memory ran out ({str(error).splitlines()[0] if str(error) else 'MemoryError'}); ask for less")
    elif (sentence := _denied(error) or _hidden(error)) is not None:
        say(sentence)
    else:
        name = ": ".join(filter(None, (type(error).__name__, str(error)[:300])))
        say(f"something unforeseen happened ({name}); {_keep_traceback(error)}")
    return 2


def _follows_interrupt(error: BaseException) -> bool:
    """Whether it is an interrupt, or what a library made of one; an earlier one that was dealt with is not told."""
    return any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and every other that led to it."""
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


def _is_our_sentence(error: BaseException) -> bool:
    """Whether it is a ValueError that our own code raised, rather than a library."""
    trace = error.__traceback__
    if not isinstance(error, ValueError) or isinstance(error, UnicodeError) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0] in _OURS


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "can't allocate" in str(error)


# What the system denies to any program, whatever it was doing.
_DENIED = {
    errno.EMFILE: "too many files are open at a time; allow more, as by `ulimit -n 1024`",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOSPC: "no room is left on the disk; make room and give the same command again",
    errno.EDQUOT: "your share of the disk is full; make room and give the same command again",
    errno.EFBIG: "a file has become larger than is allowed here; allow more, as by `ulimit -f unlimited`",
    errno.EAGAIN: "no more processes can be started; allow more, as by `ulimit -u`, or end some",
}


def _denied(error: BaseException) -> str | None:
    """What the system has denied, if that is what happened."""
    for cause in _causes(error):
        # a library that cannot be loaded tells it in words
        number = getattr(cause, "errno", None) if isinstance(cause, OSError) else None
        if isinstance(cause, ImportError) and os.strerror(errno.EMFILE) in str(cause):
            number = errno.EMFILE
        if number in _DENIED:
            return _DENIED[number]
    return None


def _hidden(error: BaseException) -> str | None:
    """Which file of the current folder hides a module that is needed, where the error leads through it."""
    from importlib.machinery import PathFinder

    folder = os.getcwd()
    elsewhere = [path for path in sys.path if path not in ("", folder)]
    led_through = {getattr(cause, "filename", None) for cause in _causes(error)}
    for cause in _causes(error):
        trace = cause.__traceback__
        while trace is not None:
            led_through.add(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
    for name in sorted(os.listdir(folder)):
        module, extension = os.path.splitext(name)
        file = os.path.join(folder, name)
        loaded = getattr(sys.modules.get(module), "__file__", None)
        if extension != ".py" or (loaded != file and file not in led_through):
            continue
        if module in sys.stdlib_module_names or PathFinder.find_spec(module, elsewhere) is not None:
            return f"{file} hides the module {module} that is needed here; rename it, or work in another folder"
    return None


def _keep_traceback(error: BaseException) -> str:
    """Writes the traceback to a file; says where it is."""
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
    """Makes no warning an error, here and in workers: PYTHONWARNINGS=error lets no library be imported."""
    if any(option.startswith("error") for option in sys.warnoptions):
        import warnings

        sys.warnoptions[:] = [option for option in sys.warnoptions if not option.startswith("error")]
        os.environ.pop("PYTHONWARNINGS", None)
        warnings.resetwarnings()
        warnings.simplefilter("default")
        print("note: warnings are shown, and not made errors, whatever PYTHONWARNINGS and -W ask", file=sys.stderr)


# --- streams --------------------------------------------------------------------------------------


class Patient:
    """A text stream to which writing never fails; it remembers that it could not write, and goes on.

    Attributes:
        failure: why it cannot write any more. A reader that leaves, `head` say, is no failure.
        in_line: whether a line was begun, and perhaps not ended, as where an interrupt came.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.failure, self.in_line = "", False
        self._open = self._given = stream is not None
        self._stream = stream if stream is not None else open(os.devnull, "w")  # noqa: SIM115

    def write(self, text: str) -> int:
        """Writes what can be written; characters that the encoding lacks are escaped."""
        if not self._given:
            self.failure = "it is closed"
        if self._open:
            self.in_line = True
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            try:
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            except (OSError, ValueError) as error:
                self._leave(error)
            self.in_line = not text.endswith(("\n", "\r", "\r\033[K"))  # ended, or to be written over
        return len(text)

    def flush(self) -> None:
        """Flushes what can be flushed."""
        if self._open:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._leave(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _leave(self, error: OSError | ValueError) -> None:
        self._open = False
        if not isinstance(error, BrokenPipeError):
            self.failure = getattr(error, "strerror", None) or str(error)
        try:  # nor shall the flush at exit complain
            number = self._stream.fileno()
        except (OSError, ValueError, AttributeError):
            return
        os.close(number)  # first, as there may be no other descriptor left
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)


@contextmanager
def _streams() -> Iterator[tuple[Patient, Patient]]:
    """stdout and stderr as patient streams; descriptors 0 to 2 are open, in children too: no file becomes one."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest that is free
    before = sys.stdout, sys.stderr
    stdout, stderr = Patient(sys.stdout), Patient(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, stdout), cast(TextIO, stderr)
    try:
        yield stdout, stderr
    finally:
        sys.stdout, sys.stderr = before
