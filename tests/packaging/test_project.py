"""What a project says of itself, and that its model is looked for without running it."""

import pytest

import sluice.packaging.project as reading
from sluice.batching import documents
from sluice.batching.documents import ArrivalDocument, LinearServiceTime, Plan, PolicyDocument, ServiceProfile
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import greedy
from sluice.packaging.project import named_libraries, read_project

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/buffer:1"
PREDICTS = "import a_library_that_is_not_here\nclass Iris:\n    def predict(self, inputs): return inputs\n"


def write(root, model="model.py:Iris", more=(), **files):
    overrides = ["ModelName=iris", f"Model={model}", *more]
    (root / "samconfig.toml").write_text(f"[default.deploy.parameters]\nparameter_overrides = {overrides}\n")
    (root / "model.py").write_text(files.pop("code", PREDICTS))
    for name, text in files.items():
        (root / f"{name}.txt").write_text(text)
    return root


def test_a_class_is_found_without_the_libraries_that_it_imports(tmp_path):
    project = read_project(
        write(tmp_path, more=["Architecture=x86_64", "PackageType=Image"], requirements="# a\nnumpy>=2 # b\n\nPillow\n")
    )
    assert (project.name, project.model, project.architecture, project.package_type) == ("iris", "model.py:Iris", "x86_64", "Image")
    assert project.requirements == ("numpy>=2", "Pillow")
    assert named_libraries(project.requirements) == {"numpy", "pillow"}


@pytest.mark.parametrize(
    "code",
    [
        "class Base: ...\nclass Iris(Base): ...\n",
        "def Iris(): ...\n",
        "from elsewhere import Iris\n",
        "from elsewhere import *\n",
        "try:\n    import x as Iris\nexcept ImportError:\n    pass\n",
        "Iris = make()\n",
        "class Iris:\n    predict = call\n",
    ],
)
def test_whatever_may_make_a_model_is_let_through(code, tmp_path):
    assert read_project(write(tmp_path, code=code)).model == "model.py:Iris"


@pytest.mark.parametrize(
    ("model", "code", "said"),
    [
        ("model.py:Iri", PREDICTS, "Model in samconfig.toml: 'model.py:Iri' .* a class with predict.*; model.py has Iris"),
        ("model.py:Iris", "class Iris: ...\n", "model.py has none: Iris has no method predict"),
        ("model.py:Iris", "class Iris:\n    def predict(self, inputs\n", "a module that Python can read .*line 2"),
        ("other.py:Iris", PREDICTS, "there is no other.py"),
        ("model.inner:Iris", PREDICTS, "there is no model/inner.py"),
        ("network.onnx", PREDICTS, "'network.onnx' is not allowed; allowed: a file of"),
        ("/opt/model.onnx", PREDICTS, "with files relative to the project"),
        ("../model.py:Iris", PREDICTS, "with files relative to the project"),
        ("model.py", PREDICTS, "package.module:Class, file.py:Class or network.onnx"),
    ],
)
def test_a_project_without_the_class_is_refused(model, code, said, tmp_path):
    with pytest.raises(InvalidInput, match=said):
        read_project(write(tmp_path, model, code=code))


def test_a_module_of_a_library_and_one_of_a_package_are_taken(tmp_path):
    assert read_project(write(tmp_path, "some_library.models:Iris")).model == "some_library.models:Iris"
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "__init__.py").write_text(PREDICTS)
    assert read_project(write(tmp_path, "flowers:Iris")).model == "flowers:Iris"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["Architecture=arm"], "Architecture in samconfig.toml: 'arm' is not allowed; allowed: arm64 or x86_64"),
        (["PackageType=zip"], "PackageType in samconfig.toml: 'zip' is not allowed; allowed: Zip or Image"),
        (["'VpcId=vpc-1 '"], "VpcId in samconfig.toml: 'vpc-1 ' is not allowed"),
        (["SubnetIds=subnet-1, subnet-2"], 'parameter_overrides of .*; allowed: a list of "Name=value"'),
        (["JwtJwks=http://issuer"], "JwtJwks in samconfig.toml: 'http://issuer' is not allowed; allowed: what is of the form"),
        (["MemorySize1=128GB"], "MemorySize1 in samconfig.toml: '128GB' is not allowed"),
        (
            ["SubnetIds=subnet-1,subnet_2"],
            "SubnetIds in samconfig.toml: 'subnet-1,subnet_2' is not allowed; allowed: a list of what is of the form",
        ),
        (["BufferImage=buffer:1"], "BufferImage in samconfig.toml: 'buffer:1' is not allowed"),
        (["SloPercentile=0.95"], "SloPercentile in samconfig.toml: '0.95' is not allowed; allowed: a number and >= 1 and <= 99.99"),
        (["SloLatency=200ms"], "SloLatency in samconfig.toml: '200ms' is not allowed; allowed: a number"),
        (["PingMinutes=inf"], "PingMinutes in samconfig.toml: 'inf' is not allowed; allowed: a number and >= 1 and <= 1440"),
        (["ProvisonedMemory=1769"], "ProvisonedMemory in .*; allowed: a parameter of the template; did you mean ProvisionedMemory"),
        (["Something=1"], "Something in samconfig.toml: '1' is not allowed; allowed: a parameter of the template$"),
        (["JwtIssuer=it's"], 'parameter_overrides of .*; allowed: a list of "Name=value"'),
        (
            ["SloLatency=0.2", "SloLatency=0.3"],
            "SloLatency in samconfig.toml: '0.3' is not allowed; allowed: given once, and it is '0.2' before",
        ),
        (["VpcId"], 'parameter_overrides of .*; allowed: a list of "Name=value"'),
    ],
)
def test_a_parameter_that_the_template_would_refuse_is_refused(more, said, tmp_path):
    with pytest.raises(InvalidInput, match=said):
        read_project(write(tmp_path, more=more))


def test_parameters_are_read_as_sam_reads_them(tmp_path):
    more = ['SubnetIds="subnet-1,subnet-2"', "VpcId=vpc-1 BufferStack='mlp-prod'"]
    assert {"SubnetIds", "VpcId", "BufferStack"} <= read_project(write(tmp_path, more=more)).given


def test_a_template_of_ones_own_may_have_more_parameters(tmp_path):
    write(tmp_path, more=["Environment=dev"])
    with pytest.raises(
        InvalidInput, match="Environment in samconfig.toml: 'dev' is not allowed; allowed: a parameter of the template"
    ):
        read_project(tmp_path)
    settings = tmp_path / "samconfig.toml"
    settings.write_text(f'{settings.read_text()}template_file = "around.yaml"\n')
    assert "Environment" in read_project(tmp_path).given
    settings.write_text(settings.read_text().replace("ModelName=iris", "ModelName=my_iris"))
    with pytest.raises(InvalidInput, match="ModelName in samconfig.toml"):
        read_project(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "PROJECT: .* a folder with samconfig.toml, as `sluice new` lays one out"),
        ("version = ", "TOML that can be read"),
        ("version = 0.1", "default.deploy.parameters.parameter_overrides of .*: none was given"),
        (
            '[default.deploy.parameters]\nparameter_overrides = "ModelName=iris"',
            "Model in default.deploy.parameters.parameter_overrides of .*: none was given",
        ),
        (
            '[dev.deploy.parameters]\nparameter_overides = "ModelName=iris"\n[prod.deploy.parameters]\nparameter_overides = []',
            "dev.deploy.parameters.parameter_overrides of .*: none was given",
        ),
        ('[prod.deploy.parameters]\nparameter_overrides = "Model=m.py:M"', "ModelName in prod.deploy.* of .*: none was given"),
        (
            '[default.deploy.parameters]\nstack_name = "1st"\nparameter_overrides = "ModelName=iris Model=m.py:M"',
            "stack_name in samconfig.toml: '1st' is not allowed; allowed: 1 to 58 of A-Z a-z 0-9 -, the first a letter",
        ),
    ],
)
def test_settings_that_say_nothing_are_refused(text, said, tmp_path):
    if text is not None:
        (tmp_path / "samconfig.toml").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_project(tmp_path)


def test_an_environment_that_the_settings_have_not_is_refused(tmp_path):
    with pytest.raises(
        InvalidInput, match="--config-env: 'prod' is not allowed; allowed: one of those in .*samconfig.toml: default"
    ):
        read_project(write(tmp_path), "prod")


@pytest.mark.parametrize("line", ["-r other.txt", "-e .", "--constraint c.txt", "./wheels/a.whl"])
def test_requirements_that_need_other_files_are_refused(line, tmp_path):
    with pytest.raises(InvalidInput, match="the file is read by itself"):
        read_project(write(tmp_path, requirements=f"numpy\n{line}\n"))


def test_tests_hidden_files_environments_and_what_was_built_are_not_shipped(tmp_path):
    project = read_project(write(tmp_path, requirements="numpy"))
    for name in (
        "weights/a.bin",
        "tests/test_it.py",
        "test_model.py",
        ".git/HEAD",
        "env/pyvenv.cfg",
        "build/layer/x",
        "README.md",
        "inner/build/b",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert [str(path) for path in project.files(without=tmp_path / "build")] == ["inner/build/b", "model.py", "weights/a.bin"]


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ([], ("VpcId", "SubnetIds", "BufferImage")),
        (["VpcId=vpc-1", "SubnetIds="], ("SubnetIds", "BufferImage")),
        (["VpcId=vpc-1", "SubnetIds=subnet-1,subnet-2", f"BufferImage={IMAGE}"], ()),
        (["BufferStack="], ("VpcId", "SubnetIds", "BufferImage")),
        (["BufferStack=mlp-prod"], ()),
    ],
)
def test_what_the_settings_lack_for_a_deployment_is_known(given, missing, tmp_path):
    assert read_project(write(tmp_path, more=given)).missing == missing


def test_plans_profiles_and_arrivals_are_not_shipped_and_other_json_is(tmp_path):
    project = read_project(write(tmp_path))
    (tmp_path / "plans").mkdir()
    for name, document in (
        ("plans/iris.json", Plan(model="iris", function="iris-512", policy=PolicyDocument.of(greedy(4)))),
        ("profile.json", ServiceProfile(function="iris-512", service_time=LinearServiceTime(0.01, 0.001))),
        ("arrivals.json", ArrivalDocument(model="poisson", arrival_rate=2.0, D0=[[-2.0]], D1=[[2.0]])),
        ("vocabulary.json", {"model": "iris", "version": 1, "words": {}}),
    ):
        (tmp_path / name).write_bytes(documents.write(document))
    (tmp_path / "broken.json").write_bytes(b"{\xff")
    assert [str(path) for path in project.files(without=tmp_path / "build")] == ["broken.json", "model.py", "vocabulary.json"]


def test_a_json_file_too_large_for_a_document_is_shipped_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST_DOCUMENT", 10)
    project = read_project(write(tmp_path))
    plan = Plan(model="iris", function="iris-512", policy=PolicyDocument.of(greedy(4)))
    (tmp_path / "plan.json").write_bytes(documents.write(plan))
    assert [str(path) for path in project.files(without=tmp_path / "build")] == ["model.py", "plan.json"]


@pytest.mark.parametrize("target", ["weights", "not-there"])
def test_a_link_that_would_not_be_shipped_is_refused(target, tmp_path):
    project = read_project(write(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "linked.py").symlink_to(tmp_path / "model.py")
    assert [str(path) for path in project.files(without=tmp_path / "build")] == ["linked.py", "model.py"]
    (tmp_path / "more").symlink_to(tmp_path / target)
    with pytest.raises(InvalidInput, match="more' is not allowed; allowed: a file, a folder, or a link to a file"):
        project.files(without=tmp_path / "build")
