"""The rights of pairs: every route × every pair, on a repository that the pair may and may not touch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from millpond.nodes.tokens import RIGHTS
from millpond.server.dispatch import Route
from millpond.server.lakefs.api import ROUTES
from millpond.server.lakefs.needs import PREFIX
from millpond.server.routes.table import On, RouteNeeds
from tests.clients.conftest import Server

OURS, THEIRS = "rights-ours", "rights-theirs"


@dataclass(frozen=True)
class Pair:
    """A right on a pattern."""

    right: str
    pattern: str

    def may(self, right: str, repository: str | None, branch: str | None = None) -> bool:
        """The model of a right: on a repository, on one of its branches, or on any repository."""
        if RIGHTS.index(self.right) < RIGHTS.index(right):
            return False
        if repository is None or self.pattern == "*":
            return True
        name, _, branches = self.pattern.partition("/")
        return name == repository and (right == "read" or not branches or branches == branch)


PAIRS = [Pair(right, pattern) for right in RIGHTS for pattern in ("*", OURS, f"{OURS}/fix")]
NAMES = {"branch": "fix", "destinationBranch": "fix", "sourceRef": "main", "ref": "main", "tag": "v1"}


def path_of(template: str, repository: str) -> str:
    """A path of a route. Its last name is one that is not there, so that nothing is changed."""
    path = template.replace("{repository}", repository)
    for name, value in NAMES.items():
        path = path.replace(f"{{{name}}}", value)
    return "/".join("nope" if segment.startswith("{") else segment for segment in path.split("/"))


def wanted(needs: RouteNeeds, repository: str) -> tuple[str | None, str | None]:
    """The repository and the branch on which a route needs its right, as far as they are known before its body."""
    if needs.on is On.BRANCH:
        return repository, "fix"
    if needs.on is On.REPOSITORY:
        return repository, None
    if needs.on is On.BODY_BRANCH:
        return repository, "fix"
    return None, None


def test_what_is_answered_at_once_changes_nothing() -> None:
    quick = [route for route in ROUTES if route.facts.at_once]
    assert len(quick) > 5
    assert all(route.method in ("GET", "HEAD") and route.needs.right == "read" for route in quick)
    assert not any(route.needs.audited or route.needs.body_bytes_max for route in quick)


@pytest.fixture(scope="module")
def secrets(server: Server) -> dict[Pair, tuple[str, str]]:
    return {
        pair: server.add_pair(f"pair-{number}", **{pair.right: (pair.pattern,)}) for number, pair in enumerate(PAIRS)
    }


@pytest.mark.sample(20)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_pair_may_what_its_rights_say(
    server: Server, secrets: dict[Pair, tuple[str, str]], route: Route
) -> None:  # fmt: skip
    needs, method, template = route.needs, route.method, route.path.removeprefix(PREFIX)
    if needs.right is None:
        pytest.skip("everybody may")
    for repository in (OURS, THEIRS):
        for pair, secret in secrets.items():
            answer = server.call(method, path_of(template, repository), b"" if method != "GET" else None, pair=secret)
            allowed = pair.may(needs.right, *wanted(needs, repository))
            assert (answer.status != 401) is allowed, (pair, repository, answer.status, answer.body)
            assert answer.status < 500
