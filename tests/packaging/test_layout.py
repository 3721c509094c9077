"""`sluice new`: what it lays out passes as it is."""

import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from sluice.batching.documents import Plan, read
from sluice.batching.errors import InvalidInput
from sluice.lambda_fn.contract import JSON, Batch, Item, decode_answers, encode_batch
from sluice.local.parent_death import die_with_parent
from sluice.packaging.layout import lay_out, name_of_class
from sluice.packaging.project import SETTINGS, WANTED, read_project
from tests import sam_template

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("projects")
    lay_out("text-tone", folder)
    return folder / "text-tone"


def blocks(project):
    """The commands of its page."""
    return re.findall(r"^\$ (.*)$", (project / "README.md").read_text(), re.M)


@pytest.fixture(scope="module")
def worker(project):
    """The address of the worker that the page starts."""
    (line,) = (line for line in blocks(project) if "worker --port" in line)
    setting, module = re.fullmatch(r"(SLUICE_MODEL=\S+) python -m (\S+) --port 8500", line).groups()
    environment = dict([setting.split("=")]) | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, "--port", "0"]
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent()
    ) as process:
        yield process.stdout.readline().strip()
        process.terminate()


def ask(url, body):
    with urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": JSON}), timeout=30) as response:
        return response.read()


@pytest.mark.parametrize("name", ["text-tone", "test"])
def test_its_own_test_passes(name, tmp_path):
    """Also where the class is called as pytest calls classes of tests, of which it warns."""
    lay_out(name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / name,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"2 passed in \S+$", done.stdout), done.stdout


def test_its_sample_request_is_answered_by_the_worker(project, worker):
    batch = Batch("text-tone", [Item("a", JSON, (project / "request.json").read_bytes())])
    (answer,) = decode_answers(ask(worker, encode_batch(batch)), batch)
    assert (answer.status, json.loads(answer.body)) == (200, {"score": 0.75})


def test_the_batch_of_its_page_is_answered_and_its_bad_request_fails_alone(project, worker):
    (line,) = (line for line in blocks(project) if line.startswith("curl http://127.0.0.1:8500 "))
    answers = json.loads(ask(worker, re.search(r"-d '(.*)'$", line)[1].encode()))["responses"]
    assert [answer["status"] for answer in answers] == [200, 422]


def test_the_plan_of_its_page_is_one_for_it(project):
    (line,) = (line for line in blocks(project) if line.startswith("echo"))
    document, file = re.fullmatch(r"echo '(.*)' > plans/(\S+)\.json", line).groups()
    plan = read(Plan, document)
    assert (plan.model, file, plan.function) == ("text-tone", "text-tone", "http://127.0.0.1:8500")


def test_its_settings_are_parameters_of_the_template(project):
    parameters = sam_template.load(ROOT / "template.yaml")["Parameters"]
    text = (project / SETTINGS).read_text()
    settings = tomllib.loads(text)
    named = re.findall(r'^ +# "(\w+)=', text, re.M)
    assert named == [*WANTED, "AlarmTopicArn", "CertificateArn", *WANTED] and set(named) <= parameters.keys()
    for environment in ("dev", "prod"):
        given = dict(pair.split("=", 1) for pair in settings[environment]["deploy"]["parameters"]["parameter_overrides"])
        assert given.keys() <= parameters.keys()
        assert given.get("Deployment", "AllAtOnce") in parameters["Deployment"]["AllowedValues"]
        assert ("Deployment" in given) == (environment == "prod")
        found = read_project(project, environment)
        assert (found.name, found.model, found.package_type) == ("text-tone", "model.py:TextTone", "Zip")
        assert (found.environment, found.stack, found.missing) == (environment, f"text-tone-{environment}", WANTED)
    assert read_project(project).environment == "dev"


def test_the_stacks_of_a_longest_name_can_name_their_functions(tmp_path):
    lay_out("b" * 48, tmp_path)
    for environment in ("dev", "prod"):
        assert len(f"{read_project(tmp_path / ('b' * 48), environment).stack}-10240") <= 64  # Lambda's


def test_its_files_are_formatted_and_nothing_of_them_is_left_to_fill_in(project):
    for check in (["check", "--extend-select", "I,B,UP,SIM"], ["format", "--check"]):
        command = [str(Path(sys.executable).with_name("ruff")), *check, "--no-cache", "--isolated", "--line-length", "132", "."]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    assert not [path.name for path in project.iterdir() if path.is_file() and re.search("@[A-Z]+@", path.read_text())]


@pytest.mark.parametrize("page", ["README.md", ROOT / "docs" / "models.md"])
def test_a_page_names_every_file_of_it(project, page):
    text = (project / page).read_text()
    assert [
        path.name for path in project.iterdir() if path.suffix and path.name != "README.md" and f"`{path.name}`" not in text
    ] == []


@pytest.mark.parametrize("name", ["", "Iris", "my_model", "9-lives", "a--b", "-a", "a-", "../a", "a b", "é", "a\n", "a" * 49])
def test_a_name_that_is_no_package_name_is_refused(name, tmp_path):
    with pytest.raises(InvalidInput, match="NAME: .* allowed: words of a-z and 0-9 with dashes between"):
        lay_out(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "taken"), [("none", "None"), ("item-error", "ItemError"), ("path", "Path")])
def test_a_name_whose_class_would_be_another_thing_is_refused(name, taken, tmp_path):
    with pytest.raises(InvalidInput, match=f"NAME: '{name}' .* whose class is not {taken}, which is taken"):
        lay_out(name, tmp_path)


def test_a_longest_name_is_one_that_the_template_takes():
    pattern = sam_template.load(ROOT / "template.yaml")["Parameters"]["ModelName"]["AllowedPattern"]
    assert name_of_class("b" * 48) and re.fullmatch(str(pattern), "b" * 48)


def test_a_folder_that_exists_is_left_as_it_is(tmp_path):
    (tmp_path / "iris").mkdir()
    (tmp_path / "iris" / "model.py").write_text("mine")
    with pytest.raises(InvalidInput, match="NAME: 'iris' is not allowed; allowed: the name of no folder yet: .* is there"):
        lay_out("iris", tmp_path)
    assert [path.name for path in (tmp_path / "iris").iterdir()] == ["model.py"]


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="--dir: .* a folder that can be written"):
        lay_out("iris", tmp_path / "file")
