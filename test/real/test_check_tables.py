"""Tests of check_tables.py: a good run passes, and each broken promise is named.

    .real/venv/bin/python -m unittest discover -s test/real
"""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import check_tables

UTC = pa.timestamp("us", "UTC")
S, I, F = pa.string(), pa.int64(), pa.float64()
BASE = {"run_id": (S, ["r1", "r1"]), "schema_version": (I, [1, 1])}


def good():
    """table -> column -> (type, values): the least that keeps every promise."""
    def t(**columns):
        n = len(next(iter(columns.values()))[1])
        return {k: (typ, v[:1] * n) for k, (typ, v) in BASE.items()} | columns

    return {
        "runs": {k: (typ, v[:1]) for k, (typ, v) in BASE.items()} | {"started": (UTC, [1_700_000_000_000_000]), "title": (S, ["Größe"])},
        "deployments": t(deployment_id=(S, ["d1", "d2"]), exit_code=(I, [137, None])),
        "samples": t(
            deployment_id=(S, ["d1", "d1"]), point_id=(S, ["p1", None]), role=(S, ["measure", "probe"]), repeat=(I, [1, None]),
            attempt=(I, [1, 1]), leg=(S, ["a", None]), slot=(I, [0, 0]), sent=(UTC, [1, None]),
            chunk_s=(pa.list_(F), [[0.1, 0.2], None]), chunk_tokens=(pa.list_(pa.int32()), [[1, 1], []]),
        ),
        "repeats": t(point_id=(S, ["p1", "p1"]), repeat=(I, [1, 1]), attempt=(I, [1, 2]), valid=(pa.bool_(), [True, None]), s_per_tok=(F, [0.25, None])),
        "points": t(point_id=(S, ["p1", "p2"]), status=(S, ["ok", "failed"]), decode_tok_s=(F, [4.0, None]), decode_tok_s_raw=(F, [None, 3.0])),
        "fits": t(variant_id=(S, ["v", "v"]), concurrency=(I, [1, 1]), quantity=(S, ["s_per_tok", "s_per_step"]), slope=(F, [None, None])),
        "settings": t(variant=(S, ["v", "v"]), name=(S, ["ctx", "ctx"]), source=(S, ["requested", "effective"]), value_num=(F, [1.0, None])),
        "telemetry": t(order_id=(S, ["o1", "o1"]), seq=(I, [7, 7]), device=(S, ["host", "gpu0"]), power_w=(F, [None, 250.0])),
    }


def write(folder, tables, describe=True):
    folder.mkdir(parents=True, exist_ok=True)
    if describe and "columns" not in tables:
        names = ["run_id", "schema_version", "table", "column", "type", "unit", "meaning"]
        rows = [(t, c, str(typ), "") for t, cols in tables.items() for c, (typ, _) in cols.items()]
        rows += [("columns", c, "int64" if c == "schema_version" else "string", "") for c in names]
        tables = tables | {"columns": {
            "run_id": (S, ["r1"] * len(rows)), "schema_version": (I, [1] * len(rows)),
            "table": (S, [r[0] for r in rows]), "column": (S, [r[1] for r in rows]), "type": (S, [r[2] for r in rows]),
            "unit": (S, [None] * len(rows)), "meaning": (S, ["m " + r[1] for r in rows]),
        }}
    for name, columns in tables.items():
        fields = [pa.field(c, typ, metadata={"unit": "", "description": "m " + c}) for c, (typ, _) in columns.items()]
        arrays = [pa.array(v, typ) for typ, v in columns.values()]
        pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), folder / f"{name}.parquet")


class CheckTables(unittest.TestCase):
    def setUp(self):
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = Path(tmp.name)

    def check(self, *folders):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = check_tables.main([str(f) for f in folders])
        return code, out.getvalue(), err.getvalue()

    def test_good_runs_pass(self):
        other = good()
        other["points"]["new_column"] = (F, [None, 1.5])
        for columns in other.values():
            columns["run_id"] = (S, ["r2"] * len(columns["run_id"][1]))
        write(self.dir / "a", good())
        write(self.dir / "b", other)
        tables = pq.read_table(self.dir / "b" / "columns.parquet")
        pq.write_table(tables.set_column(0, tables.schema.field(0), pa.array(["r2"] * tables.num_rows)), self.dir / "b" / "columns.parquet")
        code, out, err = self.check(self.dir / "a", self.dir / "b")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("2 runs, 18 tables", out)
        self.assertIn("points.parquet: 2 rows of 6 columns", out)

    def test_each_broken_promise_is_named(self):
        def change(table, column, typ, values):
            def f(tables):
                tables[table][column] = (typ, values)
            return f

        def without(table, column=None):
            def f(tables):
                if column is None:
                    del tables[table]
                else:
                    del tables[table][column]
            return f

        nan, inf = float("nan"), float("inf")
        for name, spoil, want in [
            ("NaN", change("repeats", "s_per_tok", F, [0.1, nan]), "s_per_tok: 1 values are NaN"),
            ("infinity", change("repeats", "s_per_tok", F, [-inf, inf]), "s_per_tok: 2 values are infinite"),
            ("NaN in a list", change("samples", "chunk_s", pa.list_(F), [[nan], None]), "chunk_s: 1 values are NaN"),
            ("null in a list", change("samples", "chunk_s", pa.list_(F), [[None], None]), "chunk_s: has a null inside a list"),
            ("minus one", change("deployments", "exit_code", I, [-1, None]), "exit_code: 1 values are -1"),
            ("unsigned", change("deployments", "exit_code", pa.uint32(), [1, None]), "exit_code: has type uint32"),
            ("float32", change("repeats", "s_per_tok", pa.float32(), [0.5, None]), "s_per_tok: has type float"),
            ("no zone", change("runs", "started", pa.timestamp("us"), [1]), "started: has type timestamp[us]"),
            ("nanoseconds", change("runs", "started", pa.timestamp("ns", "UTC"), [1]), "started: has type timestamp[ns, tz=UTC]"),
            ("other zone", change("runs", "started", pa.timestamp("us", "Europe/Paris"), [1]), "started: has type timestamp[us, tz=Europe/Paris]"),
            ("bad name", change("runs", "startedAt", I, [1]), "startedAt: the name is not snake_case"),
            ("no schema_version", without("fits", "schema_version"), "has no column schema_version"),
            ("no table", without("fits"), "has no fits.parquet"),
            ("key twice", change("repeats", "attempt", I, [1, 1]), "1 keys more than once; 2 rows have"),
            ("null key twice", change("samples", "point_id", S, [None, None]), None),
            ("no key", without("settings", "source"), "has no key column source"),
            ("status", change("points", "status", S, ["ok", "done"]), "a point has status done"),
            ("value of a failed point", change("points", "decode_tok_s", F, [4.0, 3.0]), "decode_tok_s: is 3.0 for a point that is failed"),
            ("raw without value", without("points", "decode_tok_s"), "has decode_tok_s_raw but no decode_tok_s"),
            ("two runs", change("fits", "run_id", S, ["r1", "r2"]), "its tables name 2 runs"),
        ]:
            with self.subTest(name):
                tables = good()
                spoil(tables)
                folder = self.dir / name.replace(" ", "_")
                write(folder, tables)
                code, _, err = self.check(folder)
                if want is None:
                    self.assertEqual((code, err), (0, ""))
                else:
                    self.assertEqual(code, 1)
                    self.assertIn(want, err)

    def test_declarations_are_compared(self):
        write(self.dir, good())
        path = self.dir / "columns.parquet"
        rows = pq.read_table(path)
        where = [(r["table"], r["column"]) for r in rows.to_pylist()].index(("points", "decode_tok_s"))
        for column, value, want in [
            ("type", "int64", "decode_tok_s: has type double, columns.parquet says int64"),
            ("type", "uint8", "points.decode_tok_s has type 'uint8', which no table may have"),
            ("unit", "tok/s", "columns.parquet says 'tok/s'"),
            ("meaning", None, "a row without meaning"),
            ("column", "ghost", "ghost is in columns.parquet but not in the table"),
            ("table", "ghosts", "columns.parquet describes ghosts.parquet, which is not there"),
        ]:
            with self.subTest(want):
                values = rows[column].to_pylist()
                values[where] = value
                at = rows.column_names.index(column)
                pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type)), path)
                code, _, err = self.check(self.dir)
                self.assertEqual(code, 1)
                self.assertIn(want, err)

    def test_go_names_of_types(self):
        for text, want in [
            ("utf8", "utf8"), ("timestamp[us, tz=UTC]", "timestamp[us, UTC]"), ("list<item: float64, nullable>", "list<float64>"),
            ("list<element: int32>", "list<int32>"), ("uint64", None), ("timestamp[ms, tz=UTC]", None),
        ]:
            self.assertEqual(check_tables.declared_name(text), want)

    def test_runs_that_do_not_fit_together(self):
        other = good()
        other["points"]["decode_tok_s"] = (S, ["fast", None])
        write(self.dir / "a", good())
        write(self.dir / "b", other)
        code, _, err = self.check(self.dir / "a", self.dir / "b")
        self.assertEqual(code, 1)
        self.assertIn("decode_tok_s: has type string, in", err)

    def test_torn_file(self):
        write(self.dir, good())
        path = self.dir / "points.parquet"
        path.write_bytes(path.read_bytes()[:-20])
        code, _, err = self.check(self.dir)
        self.assertEqual(code, 1)
        self.assertIn("points.parquet: pyarrow cannot read it", err)

    def test_wrong_use(self):
        self.assertEqual(self.check()[0], 2)
        code, _, err = self.check(self.dir / "missing")
        self.assertEqual(code, 2)
        self.assertIn("is no folder", err)


if __name__ == "__main__":
    unittest.main()
