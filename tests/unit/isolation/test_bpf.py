"""The assembler against a plain reading of its rules."""

from hypothesis import given
from hypothesis import strategies as st

from stockade.isolation.seccomp.bpf import INSTRUCTION, CallRule, Case, Condition, assemble
from tests.unit.isolation import cbpf

ENOSYS = cbpf.errno(38)
FELL_THROUGH = cbpf.errno(99)
BEHIND = INSTRUCTION.pack(0x06, 0, 0, FELL_THROUGH)

_words = st.integers(0, (1 << 32) - 1)
_small = st.sampled_from([0, 1, 2, 4, 16, 22, 0x5412, 0xFFFFFFFF])
_arguments = st.lists(
    st.builds(
        lambda high, low: high << 32 | low, st.sampled_from([0, 1, 0xFFFFFFFF]), _small | _words
    ),
    min_size=6,
    max_size=6,
)
_conditions = st.one_of(
    st.builds(
        Condition,
        arg=st.integers(0, 5),
        mask=st.sampled_from([0xF, 0xFFFFFFFF]),
        values=st.lists(_small, min_size=1, max_size=4).map(tuple),
        negated=st.booleans(),
    ),
    st.builds(Condition, arg=st.integers(0, 5), mask=_words, any_bit=st.just(True)),
    st.builds(Condition, arg=st.integers(0, 5), nonzero=st.just(True)),
)
_cases = st.builds(
    Case,
    conditions=st.lists(_conditions, min_size=1, max_size=3).map(tuple),
    result=st.integers(1, 5).map(cbpf.errno),
)
_rules = st.dictionaries(
    st.integers(0, 20),
    st.tuples(st.lists(_cases, max_size=4).map(tuple), st.sampled_from([None, cbpf.ALLOW])),
    max_size=8,
)


def _holds(condition: Condition, args: list[int]) -> bool:
    value = args[condition.arg]
    if condition.nonzero:
        return value != 0
    low = value & 0xFFFFFFFF & condition.mask
    return bool(low) if condition.any_bit else (low in condition.values) != condition.negated


def _expected(rule: CallRule, args: list[int]) -> int:
    for case in rule.cases:
        if all(_holds(condition, args) for condition in case.conditions):
            return case.result
    return FELL_THROUGH if rule.otherwise is None else rule.otherwise


@given(_rules, st.integers(0, 20), _arguments)
def test_program_does_what_its_rules_say(
    rules: dict[int, tuple[tuple[Case, ...], int | None]], number: int, args: list[int]
) -> None:
    """For any rules and any call: the first case that holds, else `otherwise`, else the program behind."""
    listed = [CallRule(nr, cases, otherwise) for nr, (cases, otherwise) in rules.items()]
    program = assemble(listed, cbpf.X86_64, refuse_x32=True, enosys=ENOSYS) + BEHIND
    ruled = {rule.number: rule for rule in listed}
    expected = _expected(ruled[number], args) if number in ruled else FELL_THROUGH
    assert cbpf.run(program, number, args) == expected


@given(st.integers(0, (1 << 32) - 1), st.integers(0, 500))
def test_call_of_another_architecture_is_missing(arch: int, number: int) -> None:
    """Numbers mean other calls there, so no rule is looked at."""
    rules = [CallRule(number, (), cbpf.ALLOW)]
    program = assemble(rules, cbpf.X86_64, refuse_x32=True, enosys=ENOSYS) + BEHIND
    expected = cbpf.ALLOW if arch == cbpf.X86_64 else ENOSYS
    assert cbpf.run(program, number, arch=arch) == expected


def test_only_instructions_that_the_kernel_precomputes_decide_a_plain_call() -> None:
    """The kernel answers always-allowed calls from a bitmap if no argument is loaded on their way (5.11)."""
    rules = [CallRule(16, (Case((Condition(1, values=(1,)),), ENOSYS),), None)]
    program = assemble(rules, cbpf.X86_64, refuse_x32=True, enosys=ENOSYS)
    codes = list(INSTRUCTION.iter_unpack(program))
    assert [code for code, _, _, k in codes[:8] if code == 0x20 and k > 4] == []
