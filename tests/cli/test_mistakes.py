"""Plausible mistakes at the command line: each is refused with exit code 2, and with what to write instead."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.durations import seconds
from sluice.batching.policy import no_batching
from sluice.cli.main import COMMANDS

from .conftest import Run

ROOT = Path(__file__).parents[2]
POISSON = "--poisson 60 --profile PROFILE"
PREDICT = f"predict {POISSON} --memory 1769"
SMDP = "smdp --rho 0.5 --service 6,1 --batch-max 4"
SIMULATE = f"simulate {POISSON} --memory 1769 --slo 0.2 --policy"
UNITS = "is not allowed; allowed: a number of seconds, or one with its unit (us, ms, s, min, h), as in 200ms"
MISTAKES = {
    "recomend": "No such command 'recomend'. Did you mean 'recommend'?",
    "scale": "No such command 'scale'. sluice --help names them.",
    "deploy": "No such command 'deploy'. `sluice package` and `sam deploy` do that (docs/deploy.md).",
    "start": "No such command 'start'. Did you mean 'serve'?",
    "plans shwo": "No such command 'shwo'. Did you mean 'show'?",
    "plans put": "No such command 'put'. Allowed: back, history, push, show.",
    f"recommend {POISSON} --slo 0.2 --out PROFILE": "a new file, or a plan to replace; this is a service profile (--profile)",
    "--verison": "Did you mean '--version'?",
    f"recommend {POISSON} --slos 0.2": "No such option '--slos'. (Did you mean one of: '--json', '--loads', '--slo'?)",
    "recommend --poison 60 --profile PROFILE --slo 0.2": "'--poisson'",
    f"recommend {POISSON} -slo 200ms": "No such option '-s'. Did you mean '--slo'?",
    f"recommend {POISSON} -slo=200ms": "Did you mean '--slo'?",
    f"recommend {POISSON} -x 1": "No such option '-x'.",
    f"recommend {POISSON} --slo 500": "--slo: '500' is not allowed; allowed: 500ms if milliseconds are meant, 500s if seconds are",
    f"recommend {POISSON} --slo p95=500": "allowed: 500ms if milliseconds are meant, 500s if seconds are",
    "recommend --profile PROFILE --class web:60:500": "NAME:ARRIVALS:SLO, the SLO 500ms if milliseconds are meant, 500s if",
    f"recommend {POISSON} --slo 200mss": f"--slo: '200mss' {UNITS}",
    f"recommend {POISSON} --slo 0,2": f"--slo: '0,2' {UNITS}",
    f"recommend {POISSON} --slo 95=0.2": "as in p95=200ms and p99=0.4; did you mean p95=0.2?",
    f"recommend {POISSON} --slo p95<0.2": "as in p95=200ms and p99=0.4; did you mean p95=0.2?",
    f"recommend {POISSON} --slo p95:0.2": "did you mean p95=0.2?",
    f"recommend {POISSON} --slo p95=0.2 --slo p99<=400ms": "and p99=0.4; did you mean p99=400ms?",
    f"recommend {POISSON} --slo p95": "--slo: 'p95' is not allowed; allowed: one latency (with --percentile), or pP=LATENCY",
    f"recommend {POISSON} --slo 0.2 --percentile 95%": "'95%' is not allowed; allowed: percent of the requests as a number alone",
    f"recommend {POISSON} --slo 0.2 --percentile 0.95": "allowed: percent of the requests, at least 1; did you mean p95?",
    f"recommend {POISSON} --slo p0.95=0.2": "did you mean p95?",
    f"recommend {POISSON} --slo 0.2 --memory 512;1024": "whole numbers with commas between, as in 512,1024",
    f"recommend {POISSON} --slo 0.2 --memory 1024": "memory_mb: 1024 is not allowed; allowed: one of the profile's: 512, 1769",
    f"recommend {POISSON} --slo 0.2 --confidence 95": "95.0 is not allowed; allowed: a probability, 0.5 <= confidence < 1",
    f"recommend {POISSON} --slo 0.2 --headroom 10": "headroom: 10.0 is not allowed; allowed: a fraction of the SLO",
    f"recommend {POISSON} --slo 0.2 --timeout 50": "allowed: 50ms if milliseconds are meant, 50s if seconds are",
    f"recommend {POISSON} --slo 0.2 --architecture x86": "architecture: 'x86' is not allowed; allowed: one of x86_64, arm64",
    f"recommend {POISSON} --slo 0.2 --stack nats": "allowed: one of nat, lambda-endpoint, endpoints, public, small",
    f"recommend {POISSON} --slo 0.2 --cold-start-probability 5": "cold_start_probability: 5.0 is not allowed; allowed: 0 to 1",
    f"recommend {POISSON}": "--slo: none was given; needed: a latency such as 200ms, or pP=LATENCY",
    "recommend --profile PROFILE --slo 0.2": "arrivals: none was given; needed: exactly one of --arrivals, --poisson and --mmpp2",
    "recommend --poisson 60 --profile none.json --slo 0.2": "--profile: 'none.json' is not allowed; allowed: a file that exists",
    f"{PREDICT} -b 4 -t 100": "'100' is not allowed; allowed: 100ms if milliseconds are meant, 100s if seconds are",
    f"{PREDICT} -b 4 -t 100msec": f"'100msec' {UNITS}",
    f"{PREDICT} -b 0 -t 0.1": "batch_size: 0 is not allowed; allowed: an integer from 1 to 1024",
    f"{PREDICT} -b 4 -t 0.1 --percentile 0.95": "did you mean p95?",
    f"{SIMULATE} size_or_timeout:8,0.1": "one of no-batching, size-or-timeout:B,TIMEOUT",
    f"{SIMULATE} size-or-timeout:8,100": "size-or-timeout:B,TIMEOUT, TIMEOUT 100ms if milliseconds are meant, 100s if seconds are",
    f"{SIMULATE} size-or-timeout:8": "allowed: size-or-timeout:B,TIMEOUT",
    "profile mlp --memory 512MB": "whole numbers with commas between, as in 512,1024",
    "serve --plans plans": "'plans' is not allowed; allowed: file:PATH, ssm:/path/ or redis:",
    "serve --redis-url localhost:6379": "allowed: redis://, rediss://, unix:// or memory://",
    "control --redis-url localhost": "'localhost' is not allowed; allowed: redis://HOST:PORT, rediss://HOST:PORT (TLS) or unix://PATH;"
    " did you mean redis://localhost?",
    "recommend --poisson 60/s --profile PROFILE --slo 0.2": "'60/s' is not allowed; allowed: a number alone, as in 0.5",
    "recommend --arrivals trace.csv --profile PROFILE --slo 0.2": "'trace.csv' is not allowed; allowed: an arrivals document, as "
    "`sluice fit --out` writes it; this is no JSON document",
    "plans push trace.csv": "'trace.csv' is not allowed; allowed: a plan, as `sluice recommend --out` writes it; this is no JSON",
    "control --redis-url redis://127.0.0.1:1 --profile PROFILE --memory 1024": "1024 is not allowed; allowed: one of the profile's",
    "control --redis-url redis://127.0.0.1:1 --fleet f.yaml --slo 0.2": "--slo: ['p95'] is not allowed; allowed: none beside",
    "demo --speed 0": "speed: 0.0 is not allowed; allowed: a number > 0",
    "demo --seconds 0": "seconds: 0.0 is not allowed; allowed: a number of seconds > 0",
    "control --servers 0": "--servers: 0 is not allowed; allowed: an integer >= 1",
    "control --max-batch-size 0": "--max-batch-size: 0 is not allowed; allowed: an integer from 1 to",
    "plans show --namespace a:b": "--namespace: 'a:b' is not allowed; allowed: 1 to 64 of the letters",
    "worker mlp.onnx --register redis://127.0.0.1:1": "--device: none was given; needed: the type of this machine",
    "worker mlp.onnx --log-format yaml": "'yaml' is not one of 'text', 'json'",
    "plans show --redis-url http://cache": "'http://cache' is not allowed; allowed: redis://HOST:PORT",
    "worker model.py --port 0": "'model.py' is not allowed; allowed: package.module:Class, file.py:Class or network.onnx",
    "control --period 5m": f"'5m' {UNITS}",
    "replay trace.csv --url http://127.0.0.1:1/ --slo 500": "allowed: 500ms if milliseconds are meant, 500s if seconds are",
    f"recommend {POISSON} --slo 0.2 --max-cost 0.5": "USD per request: 5e-07 if USD per million are meant",
    f"recommend {POISSON} --slo 0.2 --buffer-overhead 5": "allowed: 5ms if milliseconds are meant, 5s if seconds are",
    f"recommend {POISSON} --slo 0.2 --report page.pdf": "'page.pdf' is not allowed; allowed: a file name that ends in .html",
    f"recommend {POISSON} --slo 0.2 --report a.html --out ./a.html": "'./a.html' is not allowed; allowed: another file than --rep",
    "fit trace.csv --plot fit.svg --out fit.svg": "'fit.svg' is not allowed; allowed: another file than --plot writes",
    f"recommend {POISSON} --slo 0.2 --max-batch-size 8.5": "--max-batch-size': '8.5' is not allowed; allowed: a whole number alone",
    "predict --poisson 60 --profile PROFILE --memory 1769MB -b 4 -t 0.1": "'1769MB' is not allowed; allowed: a whole number alone",
    f"{PREDICT} -b 4 -t 0.1 --percentile p95": "'p95' is not allowed; allowed: percent of the requests as a number alone",
    f"{PREDICT} -b 4 -t 0.1 --pinged-every 4": "'4' is not allowed; allowed: 4min if minutes are meant, 4s if seconds are",
    f"{SIMULATE} PROFILE": "allowed: a policy, a plan, or tables by phase; this is a service profile (--profile)",
    f"simulate {POISSON} --memory 1769 --policy recommended": "slo: none was given; needed: an SLO, by which policy recommended",
    "smdp --rho 0.5 --service 6,1": "--max-batch-size: none was given; needed: the largest batch, as a line has no end",
    "control --explain PROFILE": "is not allowed; allowed: a file that `sluice control --journal` wrote",
    "control --explain .": "'.' is not allowed; allowed: a file that `sluice control --journal` wrote",
    "demo --trace ms.csv": "--trace: 'ms.csv' is not allowed; allowed: one whose first column has times or gaps in s, as times",
    f"{PREDICT} -b 4 -t 0.1 --trace ms.csv": "--trace: 'ms.csv' is not allowed; allowed: times in s, or what is fitted to them, as "
    "times such as 1.7e+12 are no seconds: sluice fit ms.csv --unit ms --out arrivals.json, then --arrivals arrivals.json",
    f"recommend {POISSON} --slo 0.2 --trace ids.csv": "--trace: 'ids.csv' is not allowed; allowed: times in s, or what is fitted "
    "to them, as the first column among id, time numbers the rows: sluice fit ids.csv --column NAME --out arrivals.json, then",
    "simulate --trace counts.csv --profile PROFILE --policy greedy --slo 0.2": "as column requests is named as counts are: "
    "sluice fit counts.csv --kind counts --bin SECONDS --column requests --out arrivals.json, then --arrivals arrivals.json",
    "fit minutes.csv": "allowed: --kind counts --bin 60 --column requests; or --kind timestamps where each row is a request: its "
    "rows are 60 s apart, and column requests is named as counts are",
    "recommend --profile PROFILE --class web:minutes.csv:200ms": "as its rows are 60 s apart, and column requests is named as "
    "counts are (--kind timestamps where each row is a request): sluice fit minutes.csv --kind counts --bin 60 --column requests",
    "recommend --profile PROFILE --class web:ms.csv:200ms": "--class: 'ms.csv' is not allowed; allowed: times in s, or what is "
    "fitted to them, as times such as 1.7e+12 are no seconds: sluice fit ms.csv --unit ms --out arrivals.json, then "
    "--class web:arrivals.json",
    "simulate --class web:either.csv --profile PROFILE --policy greedy": "these may be timestamps or "
    "interarrivals: sluice fit either.csv --kind KIND --out arrivals.json, then --class web:arrivals.json",
    "simulate --class web:'the night.csv' --profile PROFILE --policy greedy": "column per min is named as counts are: "
    "sluice fit 'the night.csv' --kind counts --bin SECONDS --column 'per min' --out arrivals.json",
    "simulate --class web:sent.csv --profile PROFILE --policy greedy": "column sent_ms is named by that unit: "
    "sluice fit sent.csv --unit ms",
    "fit sent.csv --kind interarrivals --unit ms": "'interarrivals' is not allowed; allowed: timestamps (--kind",
    "demo --trace none.csv": "'none.csv' is not allowed; allowed: a file that exists",
    "replay trace.csv --url http://127.0.0.1:1/ --speed fast": "'fast' is not allowed; allowed: a number alone, as in 0.5",
    "serve --host 203.0.113.7 --redis-url memory://": "'203.0.113.7' is not allowed; allowed: an address of this machine",
    f"recommend {POISSON} --slo 2h": "--slo: '2h' is not allowed; allowed: at most 3600 s",
    f"recommend {POISSON} --slo p95=1e6s": "--slo: '1e6s' is not allowed; allowed: at most 3600 s",
    "recommend --profile PROFILE --class web:60:2h": "'web:60:2h' is not allowed; allowed: NAME:ARRIVALS:SLO, the SLO at most",
    "recommend --profile PROFILE --class web:1e12:0.2": "allowed: a rate above 0, in requests/s, at most 1000000",
    f"recommend {POISSON} --slo 200s --max-timeout 1min": "'1min' is not allowed; allowed: at most 50 s",
    f"recommend {POISSON} --slo 0.2 --timeout 60s": "'60s' is not allowed; allowed: at most 50 s",
    "recommend --poisson 1e12 --profile PROFILE --slo 0.2": "1000000000000.0 is not allowed; allowed: requests per second, 1e-09",
    "recommend --poisson nan --profile PROFILE --slo 0.2": "--poisson: nan is not allowed; allowed: requests per second, 1e-09 to",
    "recommend --mmpp2 1e9,1,1,1 --profile PROFILE --slo 0.2": "allowed: arrival rates of at most 1000000 requests per second",
    f"{PREDICT} -b 4 -t 2h": "'2h' is not allowed; allowed: at most 3600 s",
    f"{SIMULATE} size-or-timeout:8,2h": "size-or-timeout:B,TIMEOUT, TIMEOUT at most 3600 s",
    "fleet fleet.yaml --time-limit 2h": "'2h' is not allowed; allowed: at most 3600 s",
    "smdp --rho 0.5 --service 6,1 --batch-max 4 --max-seconds 1e999": "'1e999' is not allowed; allowed: at most 3600 s",
    "replay trace.csv --url http://127.0.0.1:1/ --timeout 1e5": "'1e5' is not allowed; allowed: at most 3600 s",
    "demo --speed 1000000": "speed: 1000000.0 is not allowed; allowed: 0.139 to 277: with 3.61 requests/s in the trace",
    "demo --seconds 2h": "'2h' is not allowed; allowed: at most 3600 s",
    "worker nope.onnx --port 0": "model: 'nope.onnx' is not a file; allowed: the path of an ONNX network",
    "package nowhere": "'nowhere' is not allowed; allowed: a folder with samconfig.toml, as `sluice new` lays one out",
    # Files that are something else.
    "recommend --poisson 60 --profile other.json --slo 0.2": "as `sluice profile --out` writes it; this is another JSON document",
    "recommend --poisson 60 --profile list.json --slo 0.2": "as `sluice profile --out` writes it; this is a JSON list",
    "recommend --poisson 60 --profile folder --slo 0.2": "--profile: 'folder' is not allowed; allowed: a readable file (Is a",
    "recommend --poisson 60 --profile empty.csv --slo 0.2": "as `sluice profile --out` writes it; this is no JSON document",
    "recommend --poisson 60 --profile binary.csv --slo 0.2": "as `sluice profile --out` writes it; this is no JSON document",
    "recommend --arrivals PROFILE --profile PROFILE --slo 0.2": "`sluice fit --out` writes it; this is a service profile",
    f"recommend {POISSON} --slo 0.2 --prices PROFILE": "is not allowed; allowed: a price list, as optimizer/billing/prices.json",
    "status --prices PROFILE": "as optimizer/billing/prices.json is one; this is a service profile (--profile)",
    f"recommend {POISSON} --slo 0.2 --sizes folder": "--sizes: 'folder' is not allowed; allowed: a file of CSV, Parquet or NPY",
    f"recommend {POISSON} --slo 0.2 --out trace.csv/plan.json": "allowed: a file in a folder; trace.csv is none",
    f"recommend {POISSON} --slo 0.2 --out trace.csv": "a new file, or a plan to replace; this is something else",
    f"recommend {POISSON} --slo 0.2 --report page.html --measured trace.csv": "what `sluice replay --out FILE` or `--json` wrote",
    f"{SIMULATE} other.json": "a policy, a plan, or tables by phase; this is another JSON document",
    f"{SIMULATE} list.json": "a policy, a plan, or tables by phase; this is another JSON document",
    "fit list.json": "this is JSON, which is no trace",
    "fit empty.csv": "empty.csv: arrivals: 0 is not allowed; allowed: at least 100",
    "fit binary.csv": "this is some other binary file",
    "fit http://127.0.0.1:1/trace.csv": "a file that exists; what is elsewhere is fetched first",
    "fit redis://127.0.0.1:1": "allowed: one that names one model, as redis://HOST:6379/0?model=NAME does",
    "control --redis-url redis://127.0.0.1:1 --profile folder": "'folder' is not allowed; allowed: a profile, or a folder with",
    "control --redis-url redis://127.0.0.1:1 --declared file:none": "'file:none' is not allowed; allowed: file:PATH of a file or",
    "plans push PROFILE": "a plan, as `sluice recommend --out` writes it; this is a service profile (--profile)",
    "fleet PROFILE": "version: 1 is not allowed; allowed: one of the keys: devices, families, demand, running",
    "profile mlp --memory 512 --payload none.json": "--payload: 'none.json' is not allowed; allowed: a file that exists",
    "replay long.csv --url http://127.0.0.1:1/ --body folder": "--body: 'folder' is not allowed; allowed: a readable file",
    "new x --dir trace.csv": "--dir: 'trace.csv' is not allowed; allowed: a folder that can be written (Not a directory)",
    "package trace.csv": "'trace.csv' is not allowed; allowed: a folder with samconfig.toml",
    # Numbers that nobody means.
    "recommend --poisson -5 --profile PROFILE --slo 0.2": "--poisson: -5.0 is not allowed; allowed: requests per second, 1e-09",
    "recommend --poisson 1e-300 --profile PROFILE --slo 0.2": "--poisson: 1e-300 is not allowed; allowed: requests per second",
    f"recommend {POISSON} --slo 0.2 --max-batch-size 1000000000": "--max-batch-size: 1000000000 is not allowed; allowed: an",
    f"recommend {POISSON} --slo 0.2 --keep-alive 0": "--keep-alive: 0.0 is not allowed; allowed: a number of seconds > 0",
    f"recommend {POISSON} --slo 0.2 --keep-alive 300000": "--keep-alive: 300000.0 is not allowed; allowed: a number of seconds",
    f"recommend {POISSON} --slo 0.2 --payload-bytes 0": "--payload-bytes: 0 is not allowed; allowed: an integer >= 1",
    f"recommend {POISSON} --slo 0.2 --headroom nan": "headroom: nan is not allowed; allowed: a fraction of the SLO",
    f"recommend {POISSON} --slo 0.2 --loads 10:0.1": "loads: (10.0, 0.1) is not allowed; allowed: two multiples of the arrival",
    f"{PREDICT} -b 4 -t 0.1 --payload-bytes 2000000": "batch_size: 4 is not allowed; allowed: at most 3, as an invocation takes",
    f"{PREDICT} -b 4 -t 0.1 --payload-bytes 9000000": "bytes of a request: 9000000 is not allowed; allowed: at most",
    f"{PREDICT} -b 16 -t 0.1": "batch_size: 16 is not allowed; allowed: 1 to 8, as the profile measured",
    f"{SIMULATE} size-or-timeout:1000000000,0.1": "batch_size: 1000000000.0 is not allowed; allowed: an integer from 1 to 65536",
    f"{SIMULATE} static:0": "batch_size: 0 is not allowed; allowed: an integer",
    f"{SIMULATE} greedy --servers 1000000000": "servers: 1000000000 is not allowed; allowed: an integer from 1 to 1000000",
    "simulate --trace long.csv --profile PROFILE --memory 1769 --policy no-batching --speed 1e300": "--speed: 1e+300 is not",
    "replay long.csv --url http://127.0.0.1:1/ --speed 1e12": "--speed: 1000000000000.0 is not allowed; allowed: a number > 0, at",
    "smdp --rho 0.5 --service 6,1 --batch-max 4 --servers 1000000000": "servers: 1000000000 is not allowed; allowed: an integer",
    "smdp --rho 0.5 --profile PROFILE --memory 1769 --batch-max 100": "--max-batch-size: 100 is not allowed; allowed: 1 to 8, as",
    "smdp --rho 50 --service 6,1 --batch-max 8": "rho: 50.0 is not allowed; allowed: a number from 1e-15, and below 1; did you",
    "profile mlp --memory 512 --seed -1": "--seed: -1 is not allowed; allowed: an integer >= 0",
    "profile mlp --memory 0": "memory: 0 is not allowed; allowed: memory sizes from 128 to 10240 MB",
    "profile mlp --memory 512 --batch-size 0": "batch_size: 0 is not allowed; allowed: batch sizes >= 1",
    "profile mlp --memory 512 --precision 3": "precision: 3.0 is not allowed; allowed: a number strictly between 0 and 1",
    "profile mlp --memory 512 --min-runs 50 --max-runs 10": "--max-runs: 10 is not allowed; allowed: an integer >= 50",
    "profile mlp --memory 512 --max-seconds 100h": "'100h' is not allowed; allowed: at most 86400 s",
    "profile mlp --memory 512 --max-seconds 0": "--max-seconds: 0.0 is not allowed; allowed: a number of seconds > 0",
    "profile mlp --memory 512 --max-runs 1000000": "--max-runs: 1000000 is not allowed; allowed: an integer >= 20 (--min-runs), at",
    "profile mlp --memory 512 --min-runs 1000000": "--min-runs: 1000000 is not allowed; allowed: an integer >= 2, at most 100000",
    "profile http://127.0.0.1:1 --memory -5": "memory: -5 is not allowed; allowed: memory sizes of a machine from 1 to",
    "profile http://127.0.0.1:1 --memory 1000000000000": "allowed: memory sizes of a machine from 1 to 100000000 MB",
    f"{SIMULATE} no-batching --concurrency {10**21}": "000 is not allowed; allowed: an integer >= 1, at most 1000000, or none",
    f"{SIMULATE} no-batching --burst {10**21}": "000 is not allowed; allowed: an integer >= 1, at most 1000000",
    f"{SIMULATE} no-batching --log-bytes {10**15}": "--log-bytes: 1000000000000000 is not allowed; allowed: bytes >= 0, at most",
    f"{SIMULATE} no-batching --buffer-per-month 1e300": "--buffer-per-month: 1e+300 is not allowed; allowed: USD >= 0, at most",
    "demo --live-seconds 0.001": "live_seconds: 0.001 is not allowed; allowed: 0, or a number of seconds >= 2",
    "demo --speed 0.0001": "speed: 0.0001 is not allowed; allowed: 0.139 to 277",
    "control --lease 3000": "'3000' is not allowed; allowed: 3000ms if milliseconds are meant, 3000s if seconds are",
    "control --lease 1e9s": "'1e9s' is not allowed; allowed: at most 3600 s",
    "serve --redis-url memory:// --port 99999": "--port (SLUICE_PORT): 99999 is not allowed; allowed: 0 to 65535",
    # Options that go with others, or are none.
    f"recommend {POISSON} --slo 0.2 --model 'a b'": "--model: 'a b' is not allowed; allowed: 1 to 128 of A-Z a-z 0-9 . _ -",
    "control --redis-url redis://127.0.0.1:1 --servers 2": "--profile: none was given; needed: those of the workers",
    "control --redis-url redis://127.0.0.1:1 --function 'mlp {memory_mb}'": "--function: 'mlp {memory_mb}' is not allowed; allowed",
    "serve --redis-url rediss://:6379 --plans file:plan.json": "after the scheme comes the name of a host, as in redis://127.0.0.1",
    "plans show --redis-url redis:///0": "after the scheme comes the name of a host, as in redis://127.0.0.1:6379",
    "worker mlp.onnx --register redis://127.0.0.1:1 --device d --advertise http://": "--advertise: 'http://' is not allowed",
    "replay long.csv --url http://127.0.0.1:1/ --size-header x": "--size-header: 'x' is not allowed; allowed: none",
    "replay long.csv --url http://127.0.0.1:1/ --header a:1 --header A:2": "'a' is not allowed; allowed: each header once",
    "replay long.csv --url http://127.0.0.1:1/ --header content-length:5": "'content-length' is not allowed; allowed: none that",
    "profile mlp --memory 512,1024": "a name with {memory_mb} in it, since 2 memory sizes are asked for",
    f"{SIMULATE} no_batching": "did you mean no-batching?",
    f"{SIMULATE} size-or-timeout=8,0.1": "did you mean size-or-timeout:B,TIMEOUT?",
    "worker mlp.onnx --heartbeat 5": "--heartbeat: 5.0 is not allowed; allowed: given with --register URL alone",
    "replay long.csv --url http://127.0.0.1:1/ --header X": "--header: 'X' is not allowed; allowed: NAME:VALUE",
    "replay long.csv --url http://127.0.0.1:1/ --header Prefer:Respond-Async": "--header: 'prefer: Respond-Async' is not allowed; "
    "allowed: none: an answer that is fetched later is not waited for",
    "replay long.csv --url http://127.0.0.1:1/ --header (a):b": "--header: '(a)' is not allowed; allowed: a name of letters",
    "replay long.csv --url http://127.0.0.1:1/ --size-header a:b": "--size-header: 'a:b' is not allowed; allowed: a name of",
    "replay long.csv --url http://127.0.0.1:1/ --content-type=": "--content-type: '' is not allowed; allowed: a type, as",
    "plans show --redis-url redis://127.0.0.1:1/abc": "after the port comes the number of a database, as in /0, and not 'abc'",
    "plans show --redis-url unix://run/redis.sock": "the whole path of a socket, as in unix:///run/redis.sock",
    "serve --redis-url unix://redis.sock": "the whole path of a socket, as in unix:///run/redis.sock",
    "package project --config-env nope": "--config-env: 'nope' is not allowed; allowed: one of those in project/samconfig.toml",
    "status --url localhost:8080": "--url: 'localhost:8080' is not allowed; allowed: http://HOST:PORT of a buffer",
    f"recommend {POISSON} --slo 0.2 --snap-start --provisioned": "none beside --provisioned: Lambda has not both at once",
    f"recommend {POISSON} --slo 0.2 --prices trace.csv": "prices.json is one; this is no JSON document",
    f"recommend {POISSON} --slo 0.2 --out plan.html": "'plan.html' is not allowed; allowed: a file name that ends in .json",
    f"{PREDICT} -b 4 -t 0.1 --snap-start --provisioned 2": "--snap-start: True is not allowed; allowed: none beside --provisioned",
    "fit long.csv --kind timestamps --size-column time": "another column than time, which has the arrivals",
    "fit redis://127.0.0.1:1/zero?model=m": "after the port comes the number of a database, as in /0, and not 'zero'",
    "profile mlp --memory 512 --min-runs 300": "--max-runs: 200 is not allowed; allowed: an integer >= 300 (--min-runs)",
    "profile mlp --memory 512 --min-runs 0": "--min-runs: 0 is not allowed; allowed: an integer >= 2",
    "profile mlp --memory 512 --content-type json": "--content-type: 'json' is not allowed; allowed: a type, as application/json",
    "profile mlp --memory 512 --model a/b": "--model: 'a/b' is not allowed; allowed: 1 to 128 of A-Z a-z 0-9 . _ -",
    "profile mlp.onnx --memory 512": "FUNCTION: 'mlp.onnx' is not allowed; allowed: a function's name, name:alias or ARN",
    "profile mlp-{memory} --memory 512": "its memory size as {memory_mb}; or the address of a worker",
    "profile 127.0.0.1:8500 --memory 512": "did you mean http://127.0.0.1:8500?",
    "profile http:// --memory 512": "FUNCTION: 'http://' is not allowed; allowed: the address of a worker, http://HOST:PORT",
    f"{SIMULATE} no-batching --policy no-batching": "--policy: 'no-batching' is not allowed; allowed: each policy once",
    "smdp --rho 0.5 --service 6,1 --batch-max 4 --out plan.json": "or a policy to replace; this is a plan, to be removed first",
    f"{SMDP} --model m --function http://w:1 --out policy.json": "or a plan to replace; this is a policy, to be removed first",
    f"{SMDP} --model m --function localhost:8500 --out x.json": "HOST:PORT; several with commas between; did you mean http://localhost:8500?",
    f"{SMDP} --model m --function http://w:1,w --out x.json": "--function: 'w' is not allowed; allowed: the address of a worker",
    f"recommend {POISSON} --slo 0.2 --out later.json": "a new file, or a plan to replace; this is a plan of a later Sluice, to be",
    "smdp --rho 0.5 --service 6,1 --batch-max 4 --out table.csv": "allowed: a file name that ends in .json, as JSON is written",
    "fleet FLEET --demand mlp=5 --demand mlp=6": "demand: 'mlp=6' is not allowed; allowed: each family once",
    "fleet FLEET --gap 1000": "gap: 1000.0 is not allowed; allowed: percentage points above 0 and below 100",
    "worker mlp.onnx --port 99999": "--port: 99999 is not allowed; allowed: 0 to 65535",
    "replay long.csv --url http://127.0.0.1:1/ --content-type json": "'json' is not allowed; allowed: a type, as",
    "replay long.csv --url http://127.0.0.1:1/ --timeout 0": "--timeout: 0.0 is not allowed; allowed: a number of seconds > 0",
    "replay long.csv --kind timestamps --url http://127.0.0.1:1/ --speed 1e-9": "1e-09 is not allowed; allowed: what takes",
    "demo --seconds 0.01": "seconds: 0.01 is not allowed; allowed: at least 0.02 s",
    "status --url http://127.0.0.1:99999": "--url: 'http://127.0.0.1:99999' is not allowed; allowed: http://HOST:PORT of a buffer",
    "status --url http://": "--url: 'http://' is not allowed; allowed: http://HOST:PORT of a buffer",
    "status --url http://127.0.0.1:1 --window 60": "--window: 60.0 is not allowed; allowed: none beside --url",
    "status --url http://127.0.0.1:1 --namespace a": "--namespace: 'a' is not allowed; allowed: none beside --url",
    "status --url http://127.0.0.1:1 --architecture x86_64": "--architecture: 'x86_64' is not allowed; allowed: none beside --url",
    "status --url http://127.0.0.1:1 --redis-url redis://:secret@h:1": "--redis-url: 'redis://***@h:1' is not allowed",
    f"{PREDICT} -b 4 -t 0.1 --payload-bytes 9 --answer-bytes 9000000": "bytes of an answer: 9000000 is not allowed",
    "predict --poisson 60000 --profile PROFILE --memory 1769 -b 4 -t 0.1 --pinged-every 5min": "--pinged-every: 300.0 is not",
    f"{SIMULATE} control --sizes trace.csv": "--sizes: 'trace.csv' is not allowed; allowed: none with policy control",
    "simulate --class a:60 --class b:5 --profile PROFILE --memory 1769 --slo 0.2 --policy control": "--class: 'a:60 b:5' is not "
    "allowed; allowed: none with policy control",
    "compile all": "Got unexpected extra argument (all)",
    "new Text_Encoder": "NAME: 'Text_Encoder' is not allowed; allowed: words of a-z and 0-9 with dashes between",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_refused_with_what_to_write_instead(
    line: str, exit_of: Run, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _lay_out(tmp_path)
    named = {"PROFILE": profile, "FLEET": str(ROOT / "examples" / "fleet" / "fleet.yaml")}
    code, out, err = exit_of(*(named.get(word, word) for word in shlex.split(line)))
    assert (code, out) == (2, "") and MISTAKES[line] in err, err


def _lay_out(folder: Path) -> None:
    """Files that somebody may have, and may give in the place of another."""
    files = {"trace.csv": "time\n0.1\n0.2\n", "empty.csv": "", "other.json": '{"a": 1}', "list.json": "[1, 2, 3]"}
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "long.csv").write_text("time\n" + "".join(f"{0.1 * i + 0.01 * (i % 7):.3f}\n" for i in range(200)))
    rows = range(150)
    (folder / "ms.csv").write_text("\n".join(["time", *(str(1_700_000_000_000 + i) for i in rows)]))
    (folder / "ids.csv").write_text("\n".join(["id,time", *(f"{i},{i / 2}" for i in rows)]))
    (folder / "counts.csv").write_text("\n".join(["requests", *(str(i) for i in rows)]))
    (folder / "minutes.csv").write_text("\n".join(["minute,requests", *(f"2024-03-01T12:{i:02},{i}" for i in range(60))]))
    (folder / "either.csv").write_text("\n".join(["x", *(str(3 + i % 2) for i in rows)]))
    (folder / "the night.csv").write_text("\n".join(["per min", *(str(i) for i in rows)]))
    (folder / "sent.csv").write_text("\n".join(["sent_ms", *(str(i) for i in rows)]))
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    plan = Plan(model="m", function="f", policy=PolicyDocument.of(no_batching()))
    (folder / "plan.json").write_bytes(write(plan))
    (folder / "later.json").write_bytes(write(plan).replace(b'"version": 1', b'"version": 2'))
    (folder / "policy.json").write_bytes(write(plan.policy))
    (folder / "folder").mkdir()
    (folder / "project").mkdir()
    (folder / "project" / "samconfig.toml").write_text("version = 0.1\n[default.deploy.parameters]\nparameter_overrides = []\n")


def test_every_command_has_its_mistakes() -> None:
    assert len(MISTAKES) > 100 and set(COMMANDS) <= {line.split()[0] for line in MISTAKES}


@pytest.mark.parametrize(
    ("text", "duration"),
    [("0.2", 0.2), ("200ms", 0.2), (" 200 ms ", 0.2), ("5min", 300.0), ("1h", 3600.0), ("1e3us", 1e-3)],
)
def test_a_duration_may_have_a_unit(text: str, duration: float) -> None:
    assert seconds(text) == pytest.approx(duration)


@pytest.mark.parametrize("text", ["", "ms", "1 2", "1x", "nan", "inf", "0x10", "1,5s", "--1"])
def test_what_is_no_duration_says_what_one_is(text: str) -> None:
    with pytest.raises(ValueError, match="a number of seconds, or one with its unit"):
        seconds(text)


def test_a_number_that_may_be_of_milliseconds_is_a_question() -> None:
    assert seconds("9.9", meant_ms=10) == 9.9 and seconds("10s", meant_ms=10) == 10.0
    with pytest.raises(ValueError, match="10ms if milliseconds are meant, 10s if seconds are"):
        seconds("10", meant_ms=10)


def test_a_list_of_memory_sizes_is_one_option_or_several(exit_of: Run, profile: str) -> None:
    asked = ("recommend", "--poisson", "60", "--profile", profile, "--slo", "200ms", "--timeout", "100ms")
    once = exit_of(*asked, "--memory", "512,1769")
    assert once[0] == 0 and once == exit_of(*asked, "--memory", "512", "--memory", "1769")
