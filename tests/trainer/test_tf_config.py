"""TF_CONFIG: the valid documents, and the errors of the wrong ones."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_messages import Golden
from trainer.tf_config import ConfigurationError, TaskConfig, parse, split_address

CLUSTER = {"chief": ["chief:2222"], "worker": ["worker-0:2222", "worker-1:2222"], "ps": ["ps-0:2222"]}


def text(cluster: Any, role: Any = "chief", index: Any = 0, **more: Any) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}, **more})


def problems_of(document: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        parse(document)
    return raised.value.problems


@pytest.mark.parametrize("no_cluster", [None, "", "  \n", '{"cluster": {}, "task": {"type": "chief", "index": 0}}'])
def test_a_task_without_a_cluster_is_a_chief_without_peers(no_cluster: str | None) -> None:
    task = parse(no_cluster)
    assert (task.name, task.role, task.index, task.cluster) == ("chief", "chief", 0, {})
    assert task.is_chief
    assert task.address is None
    assert task.chief_address is None
    assert task.peers() == {}


@pytest.mark.parametrize(
    "role, index, name, address, is_chief",
    [
        ("chief", 0, "chief", "chief:2222", True),
        ("worker", 0, "worker-0", "worker-0:2222", False),
        ("worker", 1, "worker-1", "worker-1:2222", False),
        ("ps", 0, "ps-0", "ps-0:2222", False),
        ("evaluator", 0, "evaluator", None, False),
    ],
)
def test_each_task_knows_itself_and_all_others(role: str, index: int, name: str, address: str | None, *, is_chief: bool) -> None:
    task = parse(text(CLUSTER, role, index))
    assert (task.name, task.address, task.is_chief) == (name, address, is_chief)
    assert (task.chief_name, task.chief_address) == ("chief", "chief:2222")
    addresses = {"chief": "chief:2222", "worker-0": "worker-0:2222", "worker-1": "worker-1:2222", "ps-0": "ps-0:2222"}
    assert task.tasks() == addresses
    assert task.peers() == {peer: peer_address for peer, peer_address in addresses.items() if peer != name}


def test_a_program_s_chief_may_be_called_master() -> None:
    cluster = {"master": ["m:1"], "worker": ["w:1"]}
    master, worker = parse(text(cluster, "master"), has_master=True), parse(text(cluster, "worker"), has_master=True)
    assert master == TaskConfig(cluster={"chief": ("m:1",), "worker": ("w:1",)}, role="chief", index=0)
    assert (master.is_chief, worker.chief_address) == (True, "m:1")
    for wrong in (text({**cluster, "chief": ["c:1"]}, "worker"), text({"worker": ["w:1"]}, "master")):
        with pytest.raises(ConfigurationError, match="write 'chief'"):
            parse(wrong, has_master=True)


def test_worker_0_leads_a_cluster_of_workers() -> None:
    cluster = {"worker": ["a:1", "b:1"]}
    assert parse(text(cluster, "worker", 0)).is_chief
    other = parse(text(cluster, "worker", 1))
    assert not other.is_chief
    assert (other.chief_name, other.chief_address) == ("worker-0", "a:1")


def test_other_forms_that_tensorflow_accepts_are_accepted() -> None:
    task = parse(text({"worker": {"1": "b:1", "0": "a:1"}}, "worker", 1, environment="cloud", rpc_layer="grpc"))
    assert task == TaskConfig(cluster={"worker": ("a:1", "b:1")}, role="worker", index=1)


@pytest.mark.parametrize(
    "address", ["worker-0:2222", "run-worker-0.run:2222", "10.0.0.1:1", "[::1]:65535", "my_service:80", "localhost.:9"]
)
def test_valid_addresses_are_accepted(address: str) -> None:
    assert parse(text({"chief": [address]})).address == address


def test_split_address_removes_brackets() -> None:
    assert split_address("[::1]:2222") == ("::1", 2222)
    assert split_address("ps-0:80") == ("ps-0", 80)


WRONG: dict[str, str] = {
    "bad JSON": '{"cluster": {,}}',
    "placeholder of Kubernetes": '{"cluster":$(TF_CLUSTER),"task":{"type":"ps","index":0}}',
    "not an object": "[1]",
    "a key twice": '{"cluster": {"ps": ["a:1"], "ps": ["b:1"]}, "task": {}}',
    "unknown key": text(CLUSTER, clutser=1),
    "unknown key in task": json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 0, "id": 1}}),
    "unknown task type": text(CLUSTER, "wroker"),
    "master": text(CLUSTER, "master"),
    "parameter_server": text(CLUSTER, "parameter_server"),
    "task type is a number": text(CLUSTER, 5),
    "task is a list": json.dumps({"cluster": CLUSTER, "task": ["worker", 0]}),
    "no type": json.dumps({"cluster": CLUSTER, "task": {"index": 0}}),
    "no index": json.dumps({"cluster": CLUSTER, "task": {"type": "ps"}}),
    "index out of range": text(CLUSTER, "worker", 2),
    "index is a text": text(CLUSTER, "worker", "1"),
    "index is a fraction": text(CLUSTER, "worker", 1.5),
    "index is a boolean": text(CLUSTER, "worker", index=True),
    "index is negative": text(CLUSTER, "worker", -1),
    "second evaluator": text(CLUSTER, "evaluator", 1),
    "an index without a cluster": text({}, "chief", 1),
    "not in the cluster": text({"chief": ["a:1"]}, "worker"),
    "evaluator in the cluster": text({**CLUSTER, "evaluator": ["e:1"]}),
    "master in the cluster": text({**CLUSTER, "master": ["e:1"]}),
    "two chiefs": text({"chief": ["a:1", "b:1"]}),
    "one address for two": text({"chief": ["a:1"], "worker": ["b:1", "A:1"]}),
    "empty job": text({"chief": ["a:1"], "worker": []}),
    "job is a text": text({"chief": "a:1"}),
    "gaps between indexes": text({"worker": {"0": "a:1", "2": "b:1"}}, "worker"),
    "cluster is a list": text(["a:1"]),
    "address without port": text({"chief": ["chief"]}),
    "address is null": text({"chief": [None]}),
    "port out of range": text({"chief": ["a:65536"]}),
    "port zero": text({"chief": ["a:0"]}),
    "port is a word": text({"chief": ["a:http"]}),
    "scheme": text({"chief": ["grpc://a:1"]}),
    "IPv6 without brackets": text({"chief": ["::1:2222"]}),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_gives_one_complete_problem(name: str, golden: Golden) -> None:
    problems = problems_of(WRONG[name])
    assert len(problems) == 1, problems
    golden(*problems)


@pytest.mark.parametrize("document", ["[" * 100_000, '{"task": ' + "9" * 5000 + "}"], ids=["brackets", "number"])
def test_unreadable_json_is_one_problem_with_python_s_message(document: str) -> None:
    (problem,) = problems_of(document)
    assert problem.startswith("TF_CONFIG is not usable JSON: ")


def test_all_problems_are_reported_at_once(golden: Golden) -> None:
    problems = problems_of(
        text({"evaluator": ["e:1"], "wroker": ["w:1"], "ps": ["p", "p:1", "p:1"]}, "master", "x", clutser=1),
    )
    assert len(problems) == 7
    golden(*problems)


def test_missing_parts_are_reported(golden: Golden) -> None:
    golden(*problems_of("{}"))


def test_the_largest_cluster_is_read_quickly() -> None:
    workers = [f"run-worker-{index}.run:2222" for index in range(3500)]
    task = parse(text({"chief": ["run-chief-0.run:2222"], "worker": workers}, "worker", 3499))
    assert len(task.peers()) == 3500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["a:1", "chief", "worker", "", "ps"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["cluster", "task", "type", "index", "chief", "worker", "0"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["cluster", "task", "environment"]), json_values) | json_values)
def test_any_document_is_a_task_or_a_clear_error(document: Any) -> None:
    try:
        output = [parse(json.dumps(document)).name]
    except ConfigurationError as error:
        output = error.problems
        assert all(problem.startswith("TF_CONFIG") for problem in output)
    assert output
