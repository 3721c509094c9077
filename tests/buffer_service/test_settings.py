"""The environment becomes one checked record."""

from dataclasses import fields, replace

import pytest

from sluice.batching.errors import InvalidInput
from sluice.batching.variables import PREFIX
from sluice.buffer_service.settings import PRICES, Settings

SET = {
    "redis_url": ("rediss://cache:6380/1", "rediss://cache:6380/1"),
    "namespace": ("blue", "blue"),
    "spread_routes": ("yes", "yes"),
    "plans": ("ssm:/sluice/plans/", "ssm:/sluice/plans/"),
    "plan_interval": ("0.5", 0.5),
    "api_keys": ("file:keys.json", "file:keys.json"),
    "jwt_jwks": ("https://issuer/jwks.json", "https://issuer/jwks.json"),
    "jwt_issuer": ("issuer", "issuer"),
    "jwt_audience": ("sluice", "sluice"),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("0", 0),
    "admin_port": ("9090", 9090),
    "max_body_bytes": ("1024", 1024),
    "gzip_from": ("1024", 1024),
    "max_queue_length": ("7", 7),
    "max_waiting_bytes": ("8", 8),
    "header_timeout": ("1.5", 1.5),
    "body_timeout": ("2.5", 2.5),
    "keep_alive": ("3.0", 3.0),
    "request_timeout": ("3.5", 3.5),
    "invoke_timeout": ("4.5", 4.5),
    "lease": ("5.5", 5.5),
    "max_attempts": ("9", 9),
    "arrivals_kept": ("0", 0),
    "batches_kept": ("0", 0),
    "results_kept": ("0", 0),
    "results_bytes": ("1024", 1024),
    "results_life": ("60.5", 60.5),
    "drain_timeout": ("6.5", 6.5),
    "leave_delay": ("0", 0.0),
    "page": ("off", "off"),
    "cloudwatch": ("on", "on"),
    "traces": ("on", "on"),
    "gb_second_usd": ("1.5e-5", 1.5e-5),
    "invocation_usd": ("2e-7", 2e-7),
    "log_level": ("debug", "debug"),
    "log_format": ("json", "json"),
}
SECONDS = [field.name for field in fields(Settings) if isinstance(field.default, float) and field.name not in PRICES]
POSITIVE = [name for name in SECONDS if name != "leave_delay"]
DURATION = "allowed: a number of seconds, or one with its unit (us, ms, s, min, h), as in 200ms"
COUNTS = ("max_body_bytes", "max_queue_length", "max_waiting_bytes", "max_attempts", "results_bytes")


def test_an_empty_environment_gives_the_defaults():
    assert Settings.from_environment({}) == Settings()


@pytest.mark.parametrize("field", [field.name for field in fields(Settings)])
def test_every_field_is_read_from_its_variable_and_changes_no_other(field):
    text, value = SET[field]
    settings = Settings.from_environment({PREFIX + field.upper(): text})
    assert getattr(settings, field) == value != getattr(Settings(), field)
    assert settings == replace(Settings(), **{field: value})


@pytest.mark.parametrize("field", SECONDS)
def test_a_duration_may_have_its_unit_as_an_option_may(field):
    for text, value in (("250ms", 0.25), ("5min", 300.0), (" 1 h ", 3600.0)):
        given = {"SLUICE_REQUEST_TIMEOUT": "1h", PREFIX + field.upper(): text}  # a lease is no longer than that
        assert getattr(Settings.from_environment(given), field) == value


def test_a_price_is_a_number_and_has_no_unit():
    with pytest.raises(InvalidInput, match=r"SLUICE_INVOCATION_USD: '2s' is not allowed; allowed: a number$"):
        Settings.from_environment({"SLUICE_INVOCATION_USD": "2s"})


def test_the_process_environment_is_read_where_none_is_given(monkeypatch):
    monkeypatch.setenv("SLUICE_PORT", "81")
    assert Settings.from_environment().port == 81


def test_other_names_are_left_alone():
    other = {"SLUICE_MODEL": "mlp", "SLUICE_REDIS_SERVER": "/bin/redis", "PORT": "1", "sluice_port": "2", "AWS_REGION": "x"}
    assert Settings.from_environment(other) == Settings()


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        *((f, text, f"'{text}' is not allowed; {DURATION}") for f in SECONDS for text in ("", "soon", "5m", "inf", "nan")),
        *(
            (f, text, "is not allowed; allowed: a number of seconds > 0, at most ")
            for f in POSITIVE
            for text in ("0", "-1", "0ms", "200h")
        ),
        *((f, text, "is not allowed; allowed: USD >= 0") for f in PRICES for text in ("-1", "inf", "nan")),
        ("lease", "600", "600.0 is not allowed; allowed: at most 60 s (SLUICE_REQUEST_TIMEOUT), after which nobody waits"),
        ("leave_delay", "-1", "is not allowed; allowed: a number of seconds >= 0"),
        *(("namespace", text, f"'{text}' is not allowed; allowed: 1 to 64 of the letters") for text in ("", "a:b", "{a}", "a b")),
        *((f, text, f"'{text}' is not allowed; allowed: an integer") for f in (*COUNTS, "port") for text in ("", "many", "1.5")),
        *((f, text, f"{text} is not allowed; allowed: an integer >= 1") for f in COUNTS for text in ("0", "-1")),
        *(("port", text, f"{text} is not allowed; allowed: 0 to 65535") for text in ("-1", "65536")),
        *(("arrivals_kept", text, f"'{text}' is not allowed; allowed: an integer") for text in ("", "many", "1.5")),
        ("arrivals_kept", "-1", "-1 is not allowed; allowed: an integer >= 0; 0 keeps none"),
        ("host", "", "'' is not allowed; allowed: an address of this machine; 0.0.0.0 is all of them"),
        *(
            ("redis_url", text, f"'{text}' is not allowed; allowed: redis://, rediss://, unix:// or memory://")
            for text in ("", "localhost:6379", "redis", "http://cache")
        ),
        *(
            ("plans", text, f"'{text}' is not allowed; allowed: file:PATH, ssm:/path/ or redis:")
            for text in ("", "plans", "file:", "ssm:", "s3:/b")
        ),
        ("plans", "ssm:sluice", "'ssm:sluice' is not allowed"),
        ("spread_routes", "1", "'1' is not allowed; allowed: no or yes"),
        ("log_level", "loud", "'loud' is not allowed; allowed: debug, info, warning or error"),
        ("log_format", "xml", "'xml' is not allowed; allowed: text or json"),
    ],
)
def test_an_invalid_value_names_its_variable_the_value_and_what_is_allowed(field, text, message):
    name = PREFIX + field.upper()
    with pytest.raises(InvalidInput) as caught:
        Settings.from_environment({name: text})
    assert str(caught.value).startswith(f"{name}: ")
    assert message in str(caught.value)


def test_a_password_is_not_in_the_message():
    for url, shown in (
        ("redsi://user:secret@cache:6379", "redsi://***@cache:6379"),
        ("user:secret@cache:6379", "***@cache:6379"),
        ("redsi://:se/cr@et@cache", "redsi://***@cache"),
    ):
        with pytest.raises(InvalidInput) as caught:
            Settings(redis_url=url)
        assert f"'{shown}'" in str(caught.value) and "cr" not in str(caught.value)
