"""Live control: what watches the buffers and workers that run, and changes what they do.

Not here: what a plan is worth and when to change it (``optimizer``), and serving a request (``buffer_service``, ``lambda_fn``).
"""
