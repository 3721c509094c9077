"""What it costs: prices, a request's bill, cold starts, from which rate on a buffer earns its keep."""
