"""What the conformance command says of a check that differs through the gateway. The command itself needs Node."""

from tests.sampler.mcp_docker.conformance_excuses import EXCUSES, REVISIONS, WAYS, Excuse, differences

CHECK, OTHER = ("scenario", "check"), ("scenario", "other")


def test_only_an_exact_excuse_explains_a_check_that_fails_or_vanishes() -> None:
    known = {CHECK: Excuse("for a reason")}
    direct = {CHECK: True, OTHER: True}
    assert differences(direct, {CHECK: False, OTHER: True}, known) == []
    assert differences(direct, {OTHER: True}, known) == []
    assert differences(direct, {CHECK: False, OTHER: False}, known) == [(OTHER, "fails")]
    assert differences(direct, {CHECK: False}, known) == [(OTHER, "vanishes")]
    assert differences({OTHER: True}, {OTHER: True, ("scenario", "new"): False}, {}) == [
        (("scenario", "new"), "fails, and is not checked without the gateway")
    ]


def test_an_excuse_for_what_passes_or_is_no_check_is_a_defect() -> None:
    (passes,) = differences({CHECK: True}, {CHECK: True}, {CHECK: Excuse("old")})
    assert passes[0] == CHECK
    (gone,) = differences({OTHER: True}, {OTHER: True}, {CHECK: Excuse("old")})
    assert gone == (CHECK, "is excused, and no longer a check")
    assert differences({CHECK: True}, {CHECK: True}, {CHECK: Excuse("slow machines", always=False)}) == []


def test_a_check_that_fails_without_the_gateway_too_is_no_difference() -> None:
    assert differences({CHECK: False}, {CHECK: False}, {}) == []


def test_excuses_are_of_known_ways_and_revisions() -> None:
    assert all(way in WAYS and revision in REVISIONS for way, revision in EXCUSES)
    assert all(excuse.why for known in EXCUSES.values() for excuse in known.values())
