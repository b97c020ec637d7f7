"""What benchmarks compare with, each in `.venv-peers` (made by setup.sh); no module here is imported by ours."""
