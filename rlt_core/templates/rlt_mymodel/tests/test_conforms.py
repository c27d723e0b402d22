"""The plugin keeps what it declares: `rlt check mymodel` as tests."""

from rlt_core.testing import conformance

test_conforms = conformance("rlt-mymodel")
