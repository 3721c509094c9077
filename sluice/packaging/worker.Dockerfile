# The same model as an HTTP worker, from what `sluice package` wrote beside this file; VARIANT is cpu or cuda:
#   docker build --build-arg VARIANT=cuda -f worker.Dockerfile -t @NAME@-worker .
#   docker run --gpus all -p 8500:8500 @NAME@-worker
# One base for both: CUDA's libraries come as wheels of the requirements, the driver from the host.
FROM python:3.13-slim
ARG VARIANT=cpu
WORKDIR /app
COPY worker.txt requirements-${VARIANT}.txt ./
RUN pip install --no-cache-dir -r worker.txt && pip install --no-cache-dir -r requirements-${VARIANT}.txt \
    && find /usr/local/lib -path '*/nvidia/*/lib' -type d > /etc/ld.so.conf.d/nvidia.conf && ldconfig
COPY function/ ./
ENV SLUICE_MODEL=@MODEL@ SLUICE_MODEL_NAME=@NAME@ PYTHONUNBUFFERED=1
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER nobody
EXPOSE 8500
# SageMaker gives the argument `serve` instead of these.
ENTRYPOINT ["python", "-m", "sluice.lambda_fn.worker"]
CMD ["--host", "0.0.0.0", "--port", "8500"]
