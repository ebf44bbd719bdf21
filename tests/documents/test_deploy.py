"""deploy/: the files agree with programs, with pyproject.toml, with each other, and with what the services count."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from hummingbird import __main__ as command
from hummingbird.version import VERSION
from tests.documents.test_operations import made_metrics
from tests.support.pages import text_of
from tests.support.paths import ROOT
from tests.support.patience import HANG, PROGRAM

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load(text_of(DEPLOY / "compose.yaml"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's: name and rest, lines joined."""
    text = re.sub(r"^#.*\n", "", text_of(DEPLOY / "Dockerfile"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


def rests(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def parsed(words: list[str]) -> Any:
    """A command's options; SystemExit for words that it does not take."""
    return command.parser().parse_args(words)


def inside(service: dict[str, Any], path: Path) -> bool:
    """Whether a path lies in a folder that is mounted for this service."""
    targets = [Path(volume.split(":")[1]) for volume in service["volumes"]]
    return any(target in path.parents or target == path for target in targets)


def test_the_image_is_of_this_package() -> None:
    known = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} == known
    project = text_of(ROOT / "pyproject.toml")
    (python,) = (int(minor) for minor in re.findall(r"^PYTHON=3\.(\d+)$", "\n".join(rests("ARG")), re.MULTILINE))
    (oldest,) = re.findall(r'^requires-python = ">=3\.(\d+)"', project, re.MULTILINE)
    assert python >= int(oldest) and [rest.split(" ")[0] for rest in rests("FROM")] == ["python:${PYTHON}-slim"] * 2
    (install,) = (rest for rest in rests("RUN") if "/wheels/*.whl" in rest and "install" in rest)
    assert "[serve]" in install  # health checks and --metrics
    assert rests("ENTRYPOINT") == ['["python", "-m", "hummingbird"]']
    (user,) = rests("USER")
    assert user != "0" and f"useradd --uid {user} " in install
    assert all(service["user"] == f"${{HUMMINGBIRD_USER:-{user}:{user}}}" for service in SERVICES.values())


def test_the_image_is_built_from_what_is_there() -> None:
    sources = [word for rest in rests("COPY") if "--from" not in rest for word in shlex.split(rest)[:-1]]
    assert sources and all((ROOT / source).exists() for source in sources)
    let_in = re.findall(r"^!(.+)$", text_of(DEPLOY / "Dockerfile.dockerignore"), re.MULTILINE)
    assert sorted(let_in) == sorted(sources)
    for service in SERVICES.values():
        assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()


def engine() -> bool:
    """Whether a container engine answers here."""
    return shutil.which("docker") is not None and not subprocess.run(["docker", "info"], capture_output=True).returncode


@pytest.mark.slow
def test_the_image_is_built_and_runs() -> None:
    if not engine():
        pytest.skip("no container engine answers")
    tag = "hummingbird-test"
    build = ["docker", "build", "--quiet", "--file", "deploy/Dockerfile", "--tag", tag, "."]
    for words in (build, ["docker", "run", "--rm", tag, "info"]):
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"hummingbird    {VERSION}" in ended.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_programs_take_their_words(name: str) -> None:
    service = SERVICES[name]
    args = parsed(service["command"])
    paths = [value for value in vars(args).values() if isinstance(value, Path)]
    assert len(paths) >= 3 and all(inside(service, path) for path in paths)
    assert args.command != "serve" or inside(service, Path(args.saved))
    assert service["restart"] == ("no" if args.command == "ask" else "unless-stopped")
    if args.command != "ask":
        probe = service["healthcheck"]["test"]
        assert probe[:4] == ["CMD", "python", "-m", "hummingbird"]
        asked = parsed(probe[4:])
        assert asked.command == "health"
        assert asked.address == args.listen[0].replace("{rank}", str(service.get("environment", {}).get("RANK")))
        assert (asked.tls_cert, asked.tls_key, asked.tls_ca) == (args.tls_cert, args.tls_key, args.tls_ca)


def test_words_that_no_program_takes_are_seen() -> None:
    with pytest.raises(SystemExit):
        parsed([*SERVICES["party-0"]["command"], "--certificate=/certs/cert.pem"])


def names_in(network: str, service: str) -> set[str]:
    """The names under which others of a network find a service; none if it is not there."""
    networks = SERVICES[service]["networks"]
    if network not in networks:
        return set()
    more = networks[network] if isinstance(networks, dict) else None
    return {service, *(more or {}).get("aliases", [])}


def test_everybody_reaches_what_it_needs_and_no_more() -> None:
    def in_network(network: str) -> set[str]:
        return {service for service in SERVICES if names_in(network, service)}

    parties = [name for name in SERVICES if name.startswith("party-")]
    assert in_network("dealing") == {*parties, "dealer"} and in_network("asking") == {*parties, "client"}
    assert in_network("computing") == set(parties) and all(net["internal"] for net in COMPOSE["networks"].values())
    for rank, name in enumerate(parties):
        place, args = SERVICES[name]["environment"], parsed(SERVICES[name]["command"])
        assert (place["RANK"], place["WORLD_SIZE"]) == (str(rank), str(len(parties)))
        assert (place["LOCAL_RANK"], place["LOCAL_WORLD_SIZE"]) == ("0", "1")
        assert place["MASTER_ADDR"] in names_in("computing", parties[0])
        assert not any(place["MASTER_ADDR"] in names_in(net, parties[0]) for net in ("dealing", "asking"))
        host = args.dealer.rpartition(":")[0]
        assert host in names_in("dealing", "dealer") and [args.dealer] == parsed(SERVICES["dealer"]["command"]).listen
        asked = parsed(SERVICES["client"]["command"]).parties[rank]
        assert asked == args.listen[0].replace("{rank}", str(rank))
        assert asked.rpartition(":")[0] in names_in("asking", name)
        assert SERVICES["client"]["depends_on"][name]["condition"] == "service_healthy"
    assert parsed(SERVICES["dealer"]["command"]).parties == len(parties)


def test_alerts_are_rules_about_figures_that_exist(tmp_path: Path) -> None:
    (group,) = yaml.safe_load(text_of(DEPLOY / "alerts.yaml"))["groups"]
    made = made_metrics(tmp_path)
    for rule in group["rules"]:
        assert set(rule) - {"for"} == {"alert", "expr", "annotations"} and rule["annotations"]["summary"]
        assert re.fullmatch(r"Hummingbird[A-Z][a-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
        names = {name.removesuffix("_bucket") for name in re.findall(r"hummingbird_\w+", rule["expr"])}
        assert names <= made and (names or "process_" in rule["expr"])
        assert all(hasattr(grpc.StatusCode, outcome) for outcome in re.findall(r'outcome="(\w+)"', rule["expr"]))
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) >= 6


ANSWERED = 'hummingbird_requests_total{instance="a", job="hummingbird", method="Turn", outcome="INTERNAL"}'
LEFT = 'hummingbird_serving_slices_left{instance="a", job="hummingbird", store="%s"}'
# A minute between two values; the alert, and the minute at which it is looked for.
SERIES = {
    "the first call that fails": (ANSWERED, "0x20 1x20", "HummingbirdDefect", 25, True),
    "no call that fails": (ANSWERED, "0x40", "HummingbirdDefect", 25, False),
    "a store of a week": (LEFT % "dealt", "10000-1x180", "HummingbirdMaterial", 150, False),
    "a store of half a day": (LEFT % "dealt", "900-1x180", "HummingbirdMaterial", 150, True),
    "a store that is used up": (LEFT % "dealt", "0x180", "HummingbirdMaterial", 150, True),
    "a kept store at work": (LEFT % "kept", "15 9 4 14 8 3 " * 30, "HummingbirdMaterial", 150, False),
    "a kept store without its keeper": (LEFT % "kept", "9 6 3 0x170", "HummingbirdMaterial", 150, True),
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, of Prometheus, is not installed")
@pytest.mark.parametrize("case", SERIES)
def test_alerts_fire_when_they_should_and_only_then(case: str, tmp_path: Path) -> None:
    series, values, alert, minute, fires = SERIES[case]
    (group,) = yaml.safe_load(text_of(DEPLOY / "alerts.yaml"))["groups"]
    summary = next(rule["annotations"] for rule in group["rules"] if rule["alert"] == alert)
    labels = dict(re.findall(r'(\w+)="(\w+)"', series))
    found = [{"exp_labels": labels, "exp_annotations": summary}] if fires else []
    asked = {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": found}
    inputs = [{"series": series, "values": values}]
    test = {"interval": "1m", "input_series": inputs, "alert_rule_test": [asked]}
    (tmp_path / "test.yaml").write_text(yaml.dump({"rule_files": [str(DEPLOY / "alerts.yaml")], "tests": [test]}))
    command = ["promtool", "test", "rules", str(tmp_path / "test.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert ran.returncode == 0, ran.stdout + ran.stderr
