import json
import pickle

import pytest

from mx_sync import ReadBackMismatch, RemoteFailure, SetMismatch, SyncError, TransportError
from mx_sync.errors import explain, from_wire, listed, to_wire


def test_a_message_tells_the_facts_in_one_order_and_leaves_out_what_is_unknown() -> None:
    assert explain("bad", remedy="r", found=0, tensor="t") == "bad [tensor: t; found: 0; remedy: r]"
    assert explain("bad") == "bad"


def test_a_long_list_is_shortened_in_the_message() -> None:
    assert listed([str(i) for i in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.parametrize("carry", [lambda e: from_wire(json.loads(json.dumps(to_wire(e))))])
def test_a_typed_error_keeps_type_message_and_facts_on_the_wire(carry) -> None:
    error = carry(ReadBackMismatch("wrong bytes", names=["a", "b"]))
    assert type(error) is ReadBackMismatch
    assert error.names == ("a", "b")
    assert str(error) == "wrong bytes"


def test_a_typed_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(SetMismatch("m", missing=["a"], unexpected=[])))
    assert (type(error), error.missing, str(error)) == (SetMismatch, ("a",), "m")


def test_a_foreign_exception_arrives_as_a_remote_failure_that_names_it() -> None:
    error = from_wire(to_wire(ZeroDivisionError("by zero")))
    assert type(error) is RemoteFailure
    assert str(error) == "builtins.ZeroDivisionError: by zero"


@pytest.mark.parametrize(
    "wire",
    [
        *(None, [], {}, {"type": "SystemExit"}, {"type": 3, "message": {}}),
        {"type": "TransportError", "message": "m", "fields": {"message": 1, "self": 2, "a b": 3}},
    ],
)
def test_a_malformed_error_is_still_an_error(wire: object) -> None:
    assert isinstance(from_wire(wire), SyncError)


def test_only_known_error_types_are_raised() -> None:
    assert type(from_wire({"type": "OSError", "message": "m"})) is RemoteFailure
    assert type(from_wire({"type": "TransportError", "message": "m"})) is TransportError
