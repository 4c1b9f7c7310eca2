"""Messages and remedies for refusals of a cluster."""

import json

from kubernetes.client.exceptions import ApiException

from launcher.backend.kubernetes.errors import CredentialsError, ForbiddenError, TransientError, WebhookError, explain, no_access
from launcher.errors import UsageError
from tests.golden_messages import Golden


def refusal(status: int, message: str) -> ApiException:
    error = ApiException(status=status, reason="Refused")
    error.body = json.dumps({"kind": "Status", "message": message})
    return error


def test_a_missing_permission_is_shown_as_a_rule(golden: Golden) -> None:
    message = 'jobs.batch is forbidden: User "ada" cannot create resource "jobs" in API group "batch" in the namespace "team-a"'
    error = explain(refusal(403, message), "applying Job mnist-chief")
    assert isinstance(error, ForbiddenError)
    golden(error.message, error.remedy)
    assert error.rule == '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["create"]}'
    assert "a Role of yours" in error.remedy


def test_a_subresource_is_named_too(golden: Golden) -> None:
    message = 'pods "a" is forbidden: User "ada" cannot patch resource "pods/status" in API group "" in the namespace "team-a"'
    error = explain(refusal(403, message), "changing Pod a")
    assert isinstance(error, ForbiddenError)
    assert error.rule == '{apiGroups: [""], resources: ["pods/status"], verbs: ["patch"]}'
    golden(error.message)


def test_a_missing_namespace_comes_with_the_command_that_creates_it(golden: Golden) -> None:
    error = explain(refusal(404, 'namespaces "team-b" not found'), "checking ConfigMap mnist-cluster")
    golden(error.message, error.remedy)


def test_another_manager_of_a_field_is_named(golden: Golden) -> None:
    message = 'Apply failed with 1 conflict: conflict with "kubectl-edit" using apps/v1: .spec.replicas'
    error = explain(refusal(409, message), "applying Deployment mnist-tensorboard")
    golden(error.message, error.remedy)


def test_an_invalid_object_is_an_error_of_the_user(golden: Golden) -> None:
    error = explain(refusal(422, 'Job.batch "a" is invalid: spec.template: Required value'), "checking Job a")
    assert isinstance(error, UsageError)
    golden(error.message, error.remedy)


def test_a_request_to_an_unreachable_server_may_be_tried_again() -> None:
    assert isinstance(explain(ConnectionRefusedError(111, "Connection refused"), "listing jobs"), TransientError)
    assert isinstance(explain(refusal(503, "the server is currently unable to handle the request"), "listing jobs"), TransientError)


def test_a_write_that_conflicts_with_another_may_be_tried_again() -> None:
    hint = "please apply your changes to the latest version and try again"
    conflict = f'Operation cannot be fulfilled on resourcequotas "cores": the object has been modified; {hint}'
    error = explain(refusal(409, conflict), "making Job mnist-chief")
    assert isinstance(error, TransientError)
    assert "does not answer" not in error.message
    assert error.problem == "has refused changes that conflict with others"
    assert not isinstance(explain(refusal(409, 'jobs.batch "mnist-chief" already exists'), "making Job mnist-chief"), TransientError)


def test_failed_authentication_asks_the_user_to_log_in(golden: Golden) -> None:
    error = explain(refusal(401, "Unauthorized"), "listing jobs")
    assert type(error) is CredentialsError
    golden(error.message, error.remedy)


def test_a_user_without_any_permission_in_a_namespace_is_asked_whether_it_is_the_right_one(golden: Golden) -> None:
    error = no_access("team-b", "listing jobs", "{}")
    golden(error.message, error.remedy)
    assert "--namespace" in error.remedy
    assert "apiGroups" not in error.remedy
    golden(no_access("team-b").message)


def test_a_user_who_may_not_grant_an_attendants_rights_gets_a_remedy(golden: Golden) -> None:
    reason = 'is attempting to grant RBAC permissions not currently held:\n{APIGroups:[""], Resources:["pods/status"], Verbs:["patch"]}'
    message = f'roles.rbac.authorization.k8s.io "digits-attendant" is forbidden: user "jane" (groups=["team"]) {reason}'
    error = explain(refusal(403, message), "checking Role digits-attendant")
    golden(error.message, error.remedy)


def test_an_admission_webhook_that_fails_is_not_taken_for_a_cluster_that_does_not_answer(golden: Golden) -> None:
    answer = (
        'Internal error occurred: failed calling webhook "mjob.kb.io": failed to call webhook: no endpoints available for service "kueue"'
    )
    error = explain(refusal(500, answer), "changing Job mnist-chief")
    assert isinstance(error, WebhookError)
    golden(error.message, error.remedy)
    assert not isinstance(explain(refusal(500, "etcdserver: request timed out"), "changing Job mnist-chief"), WebhookError)
