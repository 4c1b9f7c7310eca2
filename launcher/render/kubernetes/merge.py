"""Strategic merge of a patch into a pod template, as `kubectl patch` does it. Pure.

Mappings are merged key by key, null removes a key. Lists whose items have a name (containers, volumes, variables) are
merged item by item; `$patch: delete` in an item removes it. Other lists are replaced. `$patch: replace` replaces a mapping,
`$patch: delete` empties it.
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/ has the rules; the keys of
lists are `x-kubernetes-patch-merge-key` in Kubernetes' OpenAPI document.
"""

from typing import Any

_MERGE_KEYS: dict[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
}
_DIRECTIVE = "$patch"


def merge(original: Any, patch: Any, field: str = "") -> Any:
    """Return `original` with `patch` merged in; neither is changed. `field` is the key that has them."""
    if isinstance(original, dict) and isinstance(patch, dict):
        return _mappings(original, patch)
    if isinstance(original, list) and isinstance(patch, list) and field in _MERGE_KEYS:
        return _lists(original, patch, _MERGE_KEYS[field])
    return _without_directives(patch)


def _mappings(original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    if patch.get(_DIRECTIVE) == "delete":
        return {}
    if patch.get(_DIRECTIVE) == "replace":
        return {key: _without_directives(value) for key, value in patch.items() if key != _DIRECTIVE}
    merged = dict(original)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif key != _DIRECTIVE:
            merged[key] = merge(merged[key], value, key) if key in merged else _without_directives(value)
    return merged


def _lists(original: list[Any], patch: list[Any], key: str) -> list[Any]:
    if any(isinstance(item, dict) and item == {_DIRECTIVE: "replace"} for item in patch):
        return [_without_directives(item) for item in patch if item != {_DIRECTIVE: "replace"}]
    merged = {item.get(key): item for item in original}
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            merged[id(item)] = _without_directives(item)  # the API server refuses it, with its own message
        elif item.get(_DIRECTIVE) == "delete":
            merged.pop(item[key], None)
        else:
            merged[item[key]] = merge(merged[item[key]], item) if item[key] in merged else _without_directives(item)
    return list(merged.values())


def _without_directives(value: Any) -> Any:
    """Return a value of a patch without nulls and directives."""
    if isinstance(value, dict):
        return {key: _without_directives(below) for key, below in value.items() if below is not None and key != _DIRECTIVE}
    return [_without_directives(item) for item in value] if isinstance(value, list) else value
