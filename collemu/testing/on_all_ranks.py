"""Hypothesis in all MPI processes at once: rank 0 draws, shrinks and remembers examples, and all run every one."""

import functools
import inspect
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from hypothesis import Phase, example, given, reject, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from collemu.arguments import shown
from collemu.ranks.launch import abort
from collemu.ranks.part import Communicator
from collemu.testing.together import (
    FAILED,
    REJECTED,
    SKIPPED,
    Outcome,
    RankError,
    Together,
    attempt,
    failures,
    outcome_of,
)

Test = Callable[..., None]
Strategies = dict[str, "SearchStrategy[Any] | Callable[[Communicator], SearchStrategy[Any]]"]
# What hypothesis's decorators leave on a test, whether they stand above or below this one.
LEFT = ("hypothesis_explicit_examples", "_hypothesis_internal_")


class _End(NamedTuple):
    """No example more; and what became of them all."""

    outcome: Outcome


def given_on_all_ranks(**strategies: "SearchStrategy[Any] | Callable[[Communicator], SearchStrategy[Any]]") -> Any:
    """As `hypothesis.given`, for a test that all processes of a communicator run together: a decorator.

    Rank 0 draws the examples, with whatever settings, seed and database there are, and sends each to all. An example
    fails in all processes if it fails in one, so that they shrink it together and all raise an error with the same
    smallest example. In one process it is `hypothesis.given`.

    The test has a parameter ``comm``, the communicator, and may have others that no strategy fills. It communicates
    first and asserts afterwards: where the others wait for a process that has failed, nothing can be shrunk, but after
    20 s the job ends and says why. Examples are pickled, so that ``st.data()`` is none. Time limits of examples
    (``deadline``) do not count.

    Parameters
    ----------
    **strategies
        By parameter; or a function that makes one for a communicator: ``lambda comm: schedules(ranks=comm.size)``.

    Raises
    ------
    TypeError
        If the test has no parameter ``comm``, or not those that strategies fill.
    """

    def decorate(test: Test) -> Test:
        parameters = inspect.signature(test).parameters
        if missing := [name for name in ("comm", *strategies) if name not in parameters]:
            raise TypeError(f"given_on_all_ranks: {test.__name__} has no parameter {', '.join(missing)}; add it")
        others = [parameter for name, parameter in parameters.items() if name not in strategies]
        signature = inspect.Signature(others)

        @functools.wraps(test)
        def on_all_ranks(*arguments: Any, **fixtures: Any) -> None:
            __tracebackhide__ = True
            fixed = signature.bind(*arguments, **fixtures).arguments
            comm: Communicator = fixed["comm"]
            with Together(comm) as together:
                if comm.rank == 0:
                    _lead(on_all_ranks, test, strategies, fixed, together)
                else:
                    _follow(test, fixed, together)

        made = cast(Any, on_all_ranks)
        made.__signature__ = signature  # pytest has fixtures for these alone
        made.is_hypothesis_test = True
        made.hypothesis = SimpleNamespace(inner_test=test)  # where pytest's plugin of hypothesis looks
        return made

    return decorate


def _lead(decorated: Test, test: Test, strategies: Strategies, fixed: dict[str, Any], together: Together) -> None:
    """Run hypothesis; every example in all processes."""
    __tracebackhide__ = True

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        __tracebackhide__ = True
        together.bcast(_pickled({name: arguments[name] for name in strategies}))
        error = attempt(functools.partial(test, **arguments))
        everybody = together.share(outcome_of(error), test.__name__)
        if error is not None:
            if len(everybody) > 1 and outcome_of(error).how == FAILED:
                error.add_note(failures(everybody))
            raise error
        _raise_of_others(everybody)

    def run_all() -> None:
        __tracebackhide__ = True
        drawn: dict[str, Any] = {
            name: each if isinstance(each, SearchStrategy) else each(together.comm) for name, each in strategies.items()
        }
        whole = cast(Any, given(**drawn)(run))
        whole.__dict__ |= {name: value for name, value in vars(decorated).items() if name.startswith(LEFT)}
        chosen: settings = whole._hypothesis_internal_use_settings
        phases = [phase for phase in chosen.phases if phase != Phase.explain]  # which sees the lines of rank 0 alone
        whole._hypothesis_internal_use_settings = settings(
            parent=chosen, deadline=None, report_multiple_bugs=False, phases=phases
        )
        whole(**fixed)

    try:
        error = attempt(run_all)
    except KeyboardInterrupt:
        abort(together.comm, "collemu.testing: interrupted")
        raise
    together.bcast(pickle.dumps(_End(outcome_of(error))))
    if error is not None:
        raise error


def _follow(test: Test, fixed: dict[str, Any], together: Together) -> None:
    """Run the examples that rank 0 sends, until it sends no more."""
    __tracebackhide__ = True
    while True:
        received = pickle.loads(together.bcast())
        if isinstance(received, _End):
            break
        together.share(_in_context(functools.partial(test, **fixed, **received)), test.__name__)
    if received.outcome.how == FAILED:
        raise RankError(received.outcome.text)
    if received.outcome.how == SKIPPED:
        import pytest

        pytest.skip(received.outcome.text)


def _in_context(work: Callable[[], None]) -> Outcome:
    """How work ends that may use ``assume``, ``note`` and ``event``, which want to be in a test of hypothesis."""
    outcomes: list[Outcome] = []

    @settings(phases=(Phase.explicit,), database=None, deadline=None)
    @example(None)
    @given(st.none())
    def once(_: None) -> None:
        outcomes.append(outcome_of(attempt(work)))

    once()
    return outcomes[0]


def _raise_of_others(everybody: list[Outcome]) -> None:
    """What rank 0 raises if it passed: an error of one class for each place, so that hypothesis keeps them apart."""
    __tracebackhide__ = True
    failed = [outcome for outcome in everybody if outcome.how == FAILED]
    if failed:
        raise _error_class(failed[0].place)(failures(everybody))
    if any(outcome.how in (REJECTED, SKIPPED) for outcome in everybody):
        reject()


@functools.lru_cache(maxsize=256)
def _error_class(place: str) -> type[RankError]:
    return type("RankError", (RankError,), {"__doc__": f"Raised at {place}.", "__module__": RankError.__module__})


def _pickled(arguments: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps(arguments)
    except Exception as error:
        raise TypeError(
            f"given_on_all_ranks: the example {shown(arguments)} cannot be sent to other processes ({error}); draw "
            f"what can be pickled, and no st.data()"
        ) from None
