"""The chart of deploy/helm: its manifests as Helm renders them, what a kubelet makes of a container, and schemas of
kinds that are not Kubernetes' own."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import ROOT
from tests.support.patience import PROGRAM

CHART = ROOT / "deploy/helm"
ROLES = sorted(path.stem for path in (CHART / "values").glob("*.yaml"))
HELM = shutil.which("helm", path=os.pathsep.join([os.environ.get("PATH", ""), str(Path.home() / "go/bin")]))
OLDEST = re.search(r'kubeVersion: ">=([\d.]+)-0"', (CHART / "Chart.yaml").read_text())

Manifest = Mapping[str, Any]

# Everything that a values file may turn on.
EVERYTHING = (
    "certificate.enabled=true",
    "certificate.issuer.name=authority",
    "monitor.enabled=true",
    "dashboard.enabled=true",
    "networkPolicy.enabled=true",
    "tls.authority=owners",
    "imagePullSecrets={registry}",
    "nodeSelector.disk=fast",
    "tolerations[0].key=gpu",
    "tolerations[0].operator=Exists",
)
SCALED = ("monitor.enabled=true", "scaling.enabled=true", "scaling.prometheus=http://prometheus.monitoring:9090")


def helm(action: str, role: str, *changed: str, kube: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run `helm lint` or `helm template` with a role's values. changed: values that are others, as for --set."""
    assert HELM is not None and OLDEST is not None
    words = [HELM, action, *([role] if action == "template" else ["--strict"]), str(CHART)]
    words += ["--values", str(CHART / f"values/{role}.yaml"), "--namespace", "private"]
    words += ["--kube-version", kube or OLDEST[1], *(f"--set={each}" for each in changed)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PROGRAM)


@functools.cache
def manifests(role: str, *changed: str) -> list[Manifest]:
    """The objects of a release that has the name of its role's values file. changed: values that are others."""
    done = helm("template", role, *changed)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(found: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    return [each for each in found if each["kind"] in kinds]


def workload(found: Iterable[Manifest]) -> Manifest:
    (only,) = of_kind(found, "StatefulSet", "Deployment")
    return only


def pod(found: Iterable[Manifest]) -> Manifest:
    """The pod template's spec."""
    spec: Manifest = workload(found)["spec"]["template"]["spec"]
    return spec


def container(found: Iterable[Manifest]) -> Manifest:
    (only,) = pod(found)["containers"]
    return only  # type: ignore[no-any-return]


def environment(found: Iterable[Manifest], group: int, cpus: int = 2) -> dict[str, str]:
    """The variables of a container, as the kubelet sets them in the pod of a group."""
    known: dict[str, str] = {}
    for each in container(found)["env"]:
        source = each.get("valueFrom")
        if source is None:
            known[each["name"]] = expanded(each["value"], known)
        elif "resourceFieldRef" in source:
            assert source["resourceFieldRef"]["resource"] == "limits.cpu"
            known[each["name"]] = str(cpus)
        else:
            assert source["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
            known[each["name"]] = str(group)
    return known


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A text with $(NAME) replaced as the kubelet does it: what is not set stays as it is."""
    return re.sub(r"\$\((\w+)\)", lambda hit: variables.get(hit[1], hit[0]), text)


def words(found: Iterable[Manifest], group: int = 0) -> list[str]:
    """The command's words in the pod of a group."""
    found = list(found)
    variables = environment(found, group)
    return [expanded(each, variables) for each in container(found)["args"]]


def put_files(folder: Path, files: Sequence[Path], names: Sequence[str] = ()) -> None:
    """Bring files into a folder as a kubelet does: all of them change at once, by one link. names: there, if others."""
    folder.mkdir(parents=True, exist_ok=True)
    own, names = folder / f"..{uuid.uuid4().hex}", names or [file.name for file in files]
    own.mkdir()
    for file, name in zip(files, names, strict=True):
        shutil.copy(file, own / name)
    (folder / "..new").symlink_to(own.name)
    (folder / "..new").rename(folder / "..data")
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


# Kinds of others: the fields that the chart uses, in the versions that it names ---------------------------------------


def _object(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    known = {**required, **optional}
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": known}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


def _kind(version: str, spec: Any) -> dict[str, Any]:
    metadata = _object({"name": _TEXT, "labels": _LABELS})
    return _object({"apiVersion": {"const": version}, "kind": _TEXT, "metadata": metadata, "spec": spec})


_TEXT, _WHOLE = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
_LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
_DURATION = {"type": "string", "pattern": r"^\d+[hms]$"}

FOREIGN = {
    "Certificate": _kind(
        "cert-manager.io/v1",
        _object(
            {
                "secretName": _TEXT,
                "dnsNames": {
                    **_list({"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}),
                    "uniqueItems": True,
                },
                "usages": _list({"enum": ["server auth", "client auth"]}),
                "privateKey": _object(
                    {"algorithm": {"enum": ["RSA", "ECDSA", "Ed25519"]}, "size": _WHOLE},
                    rotationPolicy={"enum": ["Never", "Always"]},
                ),
                "duration": _DURATION,
                "renewBefore": _DURATION,
                "issuerRef": _object({"name": _TEXT}, kind=_TEXT, group=_TEXT),
            },
            commonName={"type": "string", "maxLength": 64},
        ),
    ),
    "ServiceMonitor": _kind(
        "monitoring.coreos.com/v1",
        _object(
            {
                "jobLabel": _TEXT,
                "selector": _object({"matchLabels": _LABELS}),
                "endpoints": _list(_object({"port": _TEXT, "path": {"const": "/metrics"}, "interval": _DURATION})),
            }
        ),
    ),
    "ScaledObject": _kind(
        "keda.sh/v1alpha1",
        _object(
            {
                "scaleTargetRef": _object({"name": _TEXT}, apiVersion=_TEXT, kind=_TEXT),
                "minReplicaCount": _WHOLE,
                "maxReplicaCount": _WHOLE,
                "triggers": _list(
                    _object(
                        {
                            "type": {"const": "prometheus"},
                            "metricType": {"enum": ["AverageValue", "Value"]},
                            "metadata": _object({"serverAddress": _TEXT, "query": _TEXT, "threshold": _TEXT}),
                        }
                    )
                ),
            },
            advanced={"type": "object"},
        ),
    ),
}
