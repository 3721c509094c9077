# The function as an image (PackageType=Image of template.yaml), from what `sluice package` wrote beside this file:
#   docker build --platform linux/arm64 -f function.Dockerfile -t @NAME@ .
# The base has Lambda's runtime, awslambdaric included, and imports from the task root first.
FROM public.ecr.aws/lambda/python:3.13
COPY layer/python/ ${LAMBDA_TASK_ROOT}/
COPY function/ ${LAMBDA_TASK_ROOT}/
CMD ["sluice.lambda_fn.handler.handler"]
