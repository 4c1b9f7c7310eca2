"""Strategic merge as `kubectl patch` does it."""

from typing import Any

import pytest

from launcher.render.kubernetes.merge import merge

POD: dict[str, Any] = {
    "containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "command": ["a", "b"]}],
    "tolerations": [{"key": "x"}],
    "nodeSelector": {"pool": "a"},
}


@pytest.mark.parametrize(
    "patch, path, expected",
    [
        ({"nodeSelector": {"zone": "z"}}, ["nodeSelector"], {"pool": "a", "zone": "z"}),
        ({"nodeSelector": {"pool": None}}, ["nodeSelector"], {}),
        ({"nodeSelector": {"$patch": "replace", "zone": "z"}}, ["nodeSelector"], {"zone": "z"}),
        ({"nodeSelector": {"$patch": "delete", "zone": "z"}}, ["nodeSelector"], {}),
        ({"tolerations": [{"key": "y"}]}, ["tolerations"], [{"key": "y"}]),
        ({"containers": [{"name": "trainer", "command": ["c"]}]}, ["containers", 0, "command"], ["c"]),
        ({"containers": [{"name": "trainer", "env": [{"name": "B", "value": "3"}]}]}, ["containers", 0, "env", 1], {"name": "B", "value": "3"}),
        ({"containers": [{"name": "trainer", "env": [{"name": "A", "$patch": "delete"}]}]}, ["containers", 0, "env"], [{"name": "B", "value": "2"}]),
        ({"containers": [{"name": "proxy", "image": "p"}]}, ["containers", 1], {"name": "proxy", "image": "p"}),
        ({"containers": [{"$patch": "replace"}, {"name": "proxy"}]}, ["containers"], [{"name": "proxy"}]),
        ({"hostNetwork": True}, ["hostNetwork"], True),
    ],
)  # fmt: skip
def test_a_patch_is_merged(patch: dict[str, Any], path: list[Any], expected: Any) -> None:
    before = repr(POD)
    value = merge(POD, patch)
    for part in path:
        value = value[part]
    assert value == expected
    assert repr(POD) == before
