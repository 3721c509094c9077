"""From the folder of a model to what Lambda and Docker run: laying one out (`sluice new`), and packaging it (`sluice package`).

    layout.py      a project that passes as it is, from `layout/`
    project.py     what a project says of itself, and whether what it names is there
    libraries.py   its requirements, for the platform that it will run on
    build.py       the folder that `sam deploy` and `docker build` read

What may live here: files, pip, and reading Python without running it. What may not: a model that runs.
"""
