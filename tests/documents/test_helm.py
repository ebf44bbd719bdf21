"""deploy/helm: what Helm makes of it fits Kubernetes, the programs' parsers, their ports and metrics, and its three
owners. Helm is a tool of these tests alone; kubernetes-validate, with the schemas of all versions, is the extra
`deploy`."""

from __future__ import annotations

import copy
import json
import re
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client import CollectorRegistry

from hummingbird import __main__ as command
from hummingbird.mpc.session.lanes import environment as position
from hummingbird.rpc.metrics import Page
from hummingbird.rpc.options import service_of
from hummingbird.rpc.security import split
from hummingbird.version import VERSION
from tests.documents.test_operations import made_metrics
from tests.support import kubernetes
from tests.support.kubernetes import (
    CHART,
    EVERYTHING,
    FOREIGN,
    HELM,
    ROLES,
    SCALED,
    Manifest,
    container,
    environment,
    helm,
    manifests,
    of_kind,
    pod,
    words,
    workload,
)
from tests.support.pages import text_of
from tests.support.patience import HANG
from tests.support.ports import free_port

pytestmark = pytest.mark.skipif(
    HELM is None, reason="helm is not installed: go install helm.sh/helm/v3/cmd/helm@latest"
)
OWNERS = ("party-0", "party-1", "dealer")
TOKENS = ("gc-server", "he-server", "party-0", "party-1", "pir-server")


def everything(role: str) -> list[Manifest]:
    """A role's objects with all that may be turned on."""
    scaled = SCALED if role.startswith("party") or role == "he-server" else ()
    return manifests(role, *EVERYTHING, *scaled, *(["tokens=callers"] if role in TOKENS else []))


def variants(role: str) -> list[list[Manifest]]:
    return [manifests(role), everything(role)]


# The chart itself -----------------------------------------------------------------------------------------------------


def test_the_chart_is_of_this_release_and_knows_its_values() -> None:
    chart, values = (yaml.safe_load(text_of(CHART / name)) for name in ("Chart.yaml", "values.yaml"))
    schema = json.loads(text_of(CHART / "values.schema.json"))["properties"]
    assert chart["version"] == chart["appVersion"] == VERSION and values["image"] == f"hummingbird:{VERSION}"
    assert set(values) == set(schema) - {"global"}
    for name, value in values.items():
        known = schema[name].get("properties")
        assert known is None or set(value) == set(known), name


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_lint(role: str) -> None:
    done = helm("lint", role)
    assert done.returncode == 0, done.stdout


REFUSED = {
    ("party-0", "role=player"): "role",
    ("party-0", "replica=3"): "replica",
    ("party-0", "replicas=0"): "replicas",
    ("party-0", "args={--saved=net,--listen=0.0.0.0:1}"): "args",
    ("party-0", "args={--saved=net,--group,3}"): "args",
    ("party-0", "rank=2"): "rank is 2, and a group has 2 parties",
    ("party-1", "meet="): "meet is empty",
    ("party-0", "dealer="): "no material: set dealer",
    ("party-0", "dealer=dealer.example"): "dealer",
    ("party-0", "networkPolicy.parties=null"): "port 29500 is plain text",
    ("party-0", "networkPolicy.enabled=false"): "port 29500 is plain text",
    ("party-0", "tls.secret="): "no certificate: set tls.secret",
    ("dealer", "certificate.enabled=true"): "certificate.issuer.name",
    ("dealer", "tokens=callers"): "tokens are not for a dealer",
    ("dealer", "state.size=1Gi"): "a dealer keeps nothing",
    ("dealer", ",".join(SCALED)): "scaling is for parties and he-servers",
    ("he-server", "state.size=1Gi"): "a he-server keeps nothing",
    ("he-server", "scaling.enabled=true"): "scaling.enabled needs monitor.enabled",
    ("he-server", ",".join([*SCALED, "scaling.least=4"])): "scaling.least is 4, above scaling.most, 3",
    ("gc-server", "state.size="): "a gc-server keeps its clients' slots",
    ("gc-server", "state.size=50 GB"): "size",
    ("pir-server", "rank=2"): "the two servers of a table have ranks 0 and 1",
    ("pir-server", "service.type=NodePort"): "type",
}


QUICK = [("party-0", "role=player"), ("party-0", "dealer="), ("party-0", "networkPolicy.parties=null")]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow, id=" ".join(case)) for case in REFUSED]
)
def test_values_that_cannot_be_meant_are_refused_by_name(case: tuple[str, str]) -> None:
    role, changed = case
    done = helm("template", role, changed)
    assert done.returncode != 0 and REFUSED[case] in done.stderr


def test_a_cluster_that_gives_a_pod_no_number_is_refused() -> None:
    done = helm("template", "party-0", kube="1.27.0")
    assert done.returncode != 0 and "requires kubeVersion: >=1.28.0-0" in done.stderr


# Schemas --------------------------------------------------------------------------------------------------------------


def misfits(found: Sequence[Manifest], version: str) -> list[str]:
    """Complaints of the strict schemas of a version of Kubernetes, or those of foreign kinds."""
    validate = pytest.importorskip("kubernetes_validate", reason="the extra `deploy` is not installed")
    wrong = []
    for each in found:
        try:
            if each["kind"] in FOREIGN:
                jsonschema.Draft202012Validator(FOREIGN[each["kind"]]).validate(each)
            else:
                validate.validate(each, version, strict=True)
        except jsonschema.ValidationError as error:
            wrong.append(f"{each['kind']} {each['metadata']['name']}: {error.message}")
    return wrong


def versions() -> list[str]:
    """The oldest that the chart takes and the schemas know, and the newest."""
    utils = pytest.importorskip("kubernetes_validate.utils", reason="the extra `deploy` is not installed")
    known: list[str] = utils.all_versions()
    assert kubernetes.OLDEST is not None and kubernetes.OLDEST[1] in known
    return [kubernetes.OLDEST[1], known[-1]]


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_manifests_fit_the_oldest_and_the_newest_kubernetes(role: str) -> None:
    for version in versions():
        for found in variants(role):
            assert misfits(found, version) == []


def test_a_manifest_that_does_not_fit_is_seen() -> None:
    found = copy.deepcopy(everything("party-0"))
    (newest,) = versions()[1:]
    few = of_kind(found, "PodDisruptionBudget", "Certificate", "ServiceMonitor", "ScaledObject")
    assert len(few) == 4 and misfits(few, newest) == []
    for each in few:
        each["spec"]["minimum"] = 1
    assert len(misfits(few, newest)) == 4


# Commands, ports and probes -------------------------------------------------------------------------------------------


def parsed(found: Sequence[Manifest], group: int = 0) -> Any:
    """A container's words, read by the command's own parser; its service's options are checked, too."""
    args = command.parser().parse_args(words(found, group))
    service_of(args)
    return args


@pytest.mark.parametrize("role", ROLES)
def test_programs_take_their_words(role: str) -> None:
    for found in variants(role):
        args, mounts = parsed(found, 2), {mount["mountPath"] for mount in container(found)["volumeMounts"]}
        assert args.command == {"party": "serve"}.get(container(found)["name"], container(found)["name"])
        paths = [value for value in vars(args).values() if isinstance(value, Path) and value.is_absolute()]
        assert len(paths) >= 3 and {f"/{path.parts[1]}" for path in paths} <= mounts
        assert {mount["name"] for mount in container(found)["volumeMounts"]} == {
            *(volume["name"] for volume in pod(found)["volumes"]),
            *(claim["metadata"]["name"] for claim in workload(found)["spec"].get("volumeClaimTemplates", [])),
        }
        assert "$(" not in " ".join(words(found, 2))


def test_words_that_no_program_takes_are_seen() -> None:
    found = copy.deepcopy(manifests("party-0"))
    container(found)["args"].append("--grup=3")
    with pytest.raises(SystemExit):
        parsed(found)


def wrong_ports(found: Sequence[Manifest]) -> list[str]:
    """Ports that programs, containers, probes and Services do not have in common."""
    args, spec = parsed(found), container(found)
    named = {port["name"]: port["containerPort"] for port in spec["ports"]}
    wanted = {"calls": split(args.listen[0])[1], "metrics": split(args.metrics)[1]}
    if args.command == "serve":
        wanted["peers"] = split(args.peer_listen)[1]
        if (variables := environment(found, 0))["RANK"] == "0":
            wanted["meet"] = int(variables["MASTER_PORT"])
    wrong = [] if named == wanted else [f"container {named}, program {wanted}"]
    offered: dict[str, set[int]] = {}
    for service in of_kind(found, "Service"):
        for port in service["spec"]["ports"]:
            offered.setdefault(port["name"], set()).add(port["port"])
            wrong += [] if port["targetPort"] == port["name"] in named else [f"{service['metadata']['name']} {port}"]
    wrong += (
        [] if offered == {name: {port} for name, port in wanted.items()} else [f"Services {offered}, program {wanted}"]
    )
    probes = {name: spec[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    wrong += [f"{name} {probe}" for name, probe in probes.items() if probe["port"] != "metrics"]
    for policy in of_kind(found, "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            wrong += [f"policy {port}" for port in rule["ports"] if port["port"] not in wanted.values()]
            wrong += [] if rule.get("from") else ["policy opens a port to everybody"]
        for rule in policy["spec"].get("egress", []):
            wrong += [] if rule.get("to") or all(port["port"] == 53 for port in rule["ports"]) else ["policy: egress"]
    return wrong


@pytest.mark.parametrize("role", ROLES)
def test_ports_are_the_same_everywhere(role: str) -> None:
    for found in variants(role):
        assert wrong_ports(found) == []
        assert len(of_kind(found, "NetworkPolicy")) == (role in OWNERS or found is everything(role))


def test_a_port_that_differs_is_seen() -> None:
    for change in (
        lambda found: container(found)["ports"][0].update(containerPort=9101),
        lambda found: container(found)["livenessProbe"]["httpGet"].update(port="calls"),
        lambda found: of_kind(found, "Service")[0]["spec"]["ports"][0].update(port=443),
        lambda found: of_kind(found, "NetworkPolicy")[0]["spec"]["ingress"][0].update({"from": []}),
        lambda found: of_kind(found, "NetworkPolicy")[0]["spec"]["ingress"][0]["ports"][0].update(port=22),
    ):
        found = copy.deepcopy(manifests("party-0"))
        change(found)
        assert wrong_ports(found)


def test_probes_ask_for_pages_that_the_metrics_have() -> None:
    probes = {container(manifests(role))[f"{kind}Probe"]["httpGet"]["path"] for role in ROLES for kind in PROBES}
    ready, port = [True], free_port()
    page = Page(CollectorRegistry(), str(port), lambda: ready[0])

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=HANG) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert probes == {"/livez", "/readyz"} and all(status(path) == HTTPStatus.OK for path in probes)
    ready[0] = False
    assert [status(path) for path in ("/livez", "/readyz", "/healthz")] == [200, 503, 404]
    page.close()
    for role in ROLES:
        kinds = {kind: container(manifests(role))[f"{kind}Probe"]["httpGet"]["path"] for kind in PROBES}
        assert kinds == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}


PROBES = ("startup", "liveness", "readiness")


# What a pod may do ----------------------------------------------------------------------------------------------------


def weaknesses(found: Sequence[Manifest]) -> list[str]:
    """Rights that a pod need not have, and secrets that lie where other processes see them."""
    spec, each = pod(found), container(found)
    rights, own = spec["securityContext"], each["securityContext"]
    checks = {
        "root": rights.get("runAsNonRoot") is True and rights.get("runAsUser", 0) > 0,
        "system calls": rights.get("seccompProfile") == {"type": "RuntimeDefault"},
        "token of the account": spec.get("automountServiceAccountToken") is False,
        "root file system": own.get("readOnlyRootFilesystem") is True,
        "privileges": own.get("allowPrivilegeEscalation") is False and own.get("capabilities") == {"drop": ["ALL"]},
        "host": not any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")) and not own.get("privileged"),
        "secret in a variable": "secretKeyRef" not in json.dumps(each["env"]) and not each.get("envFrom"),
        "secret that is never renewed": not any("subPath" in mount for mount in each["volumeMounts"]),
        "writable": {mount["mountPath"] for mount in each["volumeMounts"] if not mount.get("readOnly")}
        <= {"/tmp", "/state"},
    }
    modes = [volume["projected"]["defaultMode"] for volume in spec["volumes"] if "projected" in volume]
    modes += [volume["secret"]["defaultMode"] for volume in spec["volumes"] if "secret" in volume]
    checks["files that others read"] = bool(modes) and not any(mode & 0o337 for mode in modes)
    return [name for name, passed in checks.items() if not passed]


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_has_no_right_that_it_does_not_need(role: str) -> None:
    for found in variants(role):
        assert weaknesses(found) == []


def test_a_right_too_many_is_seen() -> None:
    found = copy.deepcopy(manifests("party-0"))
    pod(found)["securityContext"].update(runAsUser=0)
    pod(found)["automountServiceAccountToken"] = True
    container(found)["env"].append({"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}})
    container(found)["volumeMounts"][0].update(subPath="tls.key", readOnly=False)
    for volume in pod(found)["volumes"]:
        volume.get("projected", {}).update(defaultMode=0o444)
    assert set(weaknesses(found)) == {
        "root",
        "token of the account",
        "secret in a variable",
        "secret that is never renewed",
        "writable",
        "files that others read",
    }


# Objects that belong together -----------------------------------------------------------------------------------------


def unmatched(found: Sequence[Manifest]) -> list[str]:
    """Objects that select nothing of this release, or name what it does not have."""
    labels = {f"{workload(found)['metadata']['name']}-{group}": 1 for group in range(8)}
    pods = [
        {**workload(found)["spec"]["template"]["metadata"]["labels"], "statefulset.kubernetes.io/pod-name": name}
        for name in labels
    ]
    services = [each["metadata"]["labels"] for each in of_kind(found, "Service")]

    def hits(wanted: Manifest, among: Sequence[Manifest]) -> bool:
        return any(wanted.items() <= each.items() for each in among)

    wrong = []
    for each in found:
        name, spec = f"{each['kind']} {each['metadata']['name']}", each.get("spec", {})
        if each["kind"] == "Service" and not hits(spec["selector"], pods):
            wrong.append(name)
        if each["kind"] in ("PodDisruptionBudget", "StatefulSet", "Deployment"):
            wrong += [] if hits(spec["selector"]["matchLabels"], pods) else [name]
        if each["kind"] == "NetworkPolicy" and not hits(spec["podSelector"]["matchLabels"], pods):
            wrong.append(name)
        if each["kind"] == "ServiceMonitor":
            chosen = [labels for labels in services if spec["selector"]["matchLabels"].items() <= labels.items()]
            wrong += [] if len(chosen) == 1 and chosen[0][spec["jobLabel"]] == "hummingbird" else [name]
        if each["kind"] == "ScaledObject":
            target = {
                "name": workload(found)["metadata"]["name"],
                "kind": workload(found)["kind"],
                "apiVersion": "apps/v1",
            }
            wrong += [] if spec["scaleTargetRef"] == target and "replicas" not in workload(found)["spec"] else [name]
        if each["kind"] == "StatefulSet":
            wrong += [] if spec["serviceName"] in [s["metadata"]["name"] for s in of_kind(found, "Service")] else [name]
    return wrong


@pytest.mark.parametrize("role", ROLES)
def test_objects_belong_together(role: str) -> None:
    for found in variants(role):
        assert unmatched(found) == []
        assert len({(each["kind"], each["metadata"]["name"]) for each in found}) == len(found)
    kinds = {each["kind"] for each in everything(role)}
    assert {"Certificate", "ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap"} < kinds
    assert ("ScaledObject" in kinds) == (role in ("party-0", "party-1", "he-server"))
    assert not {each["kind"] for each in manifests(role)} & {*FOREIGN, "ConfigMap"}


def test_an_object_that_selects_nothing_is_seen() -> None:
    found = copy.deepcopy(everything("party-0"))
    for each in found:
        selector = each.get("spec", {}).get("selector", each.get("spec", {}).get("podSelector"))
        if selector:
            selector.get("matchLabels", selector).update({"app.kubernetes.io/instance": "another"})
        each.get("spec", {}).get("scaleTargetRef", {}).update(kind="Deployment")
    assert len(unmatched(found)) == len([each for each in found if each["kind"] not in ("Certificate", "ConfigMap")])


def names_of(role: str, *changed: str) -> dict[str, list[str]]:
    """Ports by the names of a release's pods, and the groups that have them: `host:port` and Services' selectors."""
    found, offered = manifests(role, *changed), dict[str, list[str]]()
    for service in of_kind(found, "Service"):
        if service["spec"].get("clusterIP") != "None":
            name = service["metadata"]["annotations"]["external-dns.alpha.kubernetes.io/hostname"]
            chosen = service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"]
            for port in service["spec"]["ports"]:
                offered[f"{name}:{port['port']}"] = [chosen, port["name"]]
    return offered


def test_the_three_owners_find_each_other_in_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, ports, groups, ranks and certificates of three releases that no one sees together."""
    offered = {name: who for role in OWNERS for name, who in names_of(role).items()}
    assert len(offered) == 3 * (3 + 2 + 1)
    for group in range(3):
        for rank, role in enumerate(OWNERS[:2]):
            found = manifests(role)
            args, variables = parsed(found, group), environment(found, group)
            assert args.group == group and offered[args.dealer] == [f"dealer-{group}", "calls"]
            assert offered[args.peer_address] == [f"{role}-{group}", "peers"]
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            place = position()
            assert (place.party, place.parties, place.lane, place.lanes) == (rank, 2, 0, 1)
            if rank:
                meet = f"{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}"
                assert offered[meet] == [f"party-0-{group}", "meet"]
            else:
                assert variables["MASTER_ADDR"] == "0.0.0.0"
        assert parsed(manifests("dealer"), group).parties == 2


def test_certificates_are_for_the_names_that_others_use() -> None:
    changed = ("certificate.enabled=true", "certificate.issuer.name=authority")
    for role in OWNERS:
        (made,) = of_kind(manifests(role, *changed), "Certificate")
        hosts = {name.rpartition(":")[0] for name in names_of(role)}
        own = [role] if role != "dealer" else []
        assert made["spec"]["dnsNames"] == [*own, *sorted(hosts)] and made["spec"].get("commonName", role) == role
        (volume,) = (each["projected"] for each in pod(manifests(role, *changed))["volumes"] if "projected" in each)
        assert volume["sources"][0]["secret"]["name"] == made["spec"]["secretName"]


def test_scaling_gives_every_possible_group_its_service_and_its_names() -> None:
    changed = (*SCALED, "scaling.most=5", "certificate.enabled=true", "certificate.issuer.name=authority")
    found = manifests("party-1", *changed)
    assert len(of_kind(found, "Service")) == 6 and len(of_kind(found, "Certificate")[0]["spec"]["dnsNames"]) == 6


# Metrics --------------------------------------------------------------------------------------------------------------


def measured(text: str) -> set[str]:
    """The names of our figures in an expression."""
    return {re.sub(r"_bucket$", "", name) for name in re.findall(r"\bhummingbird_\w+", text)}


def test_what_scales_and_what_is_shown_is_counted(tmp_path: Path) -> None:
    made = made_metrics(tmp_path)
    for role, name in (
        ("party-0", "hummingbird_serving_waiting_requests"),
        ("he-server", "hummingbird_he_turns_waiting"),
    ):
        (scaled,) = of_kind(everything(role), "ScaledObject")
        query = scaled["spec"]["triggers"][0]["metadata"]["query"]
        assert measured(query) == {name} <= made
        assert query == f'sum({name}{{namespace="private",service="{role}-pods"}})'
    (shown,) = of_kind(everything("dealer"), "ConfigMap")
    board = json.loads(shown["data"]["hummingbird.json"])
    assert board == json.loads(text_of(CHART / "files/dashboard.json")) and board["uid"] == "hummingbird"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) >= 12
    for panel in board["panels"]:
        for target in panel["targets"]:
            names = measured(target["expr"])
            assert names <= made and (names or "process_" in target["expr"]), panel["title"]
            assert 'namespace=~"$namespace"' in target["expr"]
    assert not measured("rate(hummingbird_gone_total[5m])") <= made  # it can fail
