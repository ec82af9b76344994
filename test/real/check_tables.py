#!/usr/bin/env python3
"""Check the Parquet tables of finished runs with other people's readers.

    check_tables.py RUN_DIR...

Every *.parquet of each run folder is opened with pyarrow, pandas, DuckDB and
Polars. They must agree with each other and with the run's own columns.parquet
on names, types, rows, nulls and values, and the tables must keep the promises
of the table reference: signed integers only, timestamps in UTC microseconds,
absent is null and never NaN, an infinity or -1, no key twice. Over all folders
together, each table must read as one data set whatever the order of the files.

Nothing is written. stdout says what was checked; stderr has one line for each
broken promise. Exit: 0 all kept, 1 some broken, 2 wrong use.
"""

import os
import re
import sys
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # the tables are small, the machine may be shared

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TABLES = ["runs", "deployments", "samples", "repeats", "points", "fits", "settings", "telemetry", "columns"]

# Rows are unique in these columns; the optional tables have theirs here too.
KEYS = {
    "runs": ["run_id"],
    "deployments": ["run_id", "deployment_id"],
    "samples": ["run_id", "deployment_id", "point_id", "role", "repeat", "attempt", "leg", "slot"],
    "repeats": ["run_id", "point_id", "repeat", "attempt"],
    "points": ["run_id", "point_id"],
    "fits": ["run_id", "variant_id", "concurrency", "quantity"],
    "claims": ["run_id", "claim_id"],
    "settings": ["run_id", "variant", "name", "source"],
    "telemetry": ["run_id", "order_id", "seq", "device"],
    "columns": ["run_id", "table", "column"],
}

POINT_STATUS = {"ok", "unresolved", "invalid", "failed", "skipped", "pending"}


# What each reader calls the types that a table may have. A reader that shows
# another type has lost something, the unit or the zone of a time, say.
class Type:
    def __init__(self, arrow, duck, polar):
        self.arrow, self.duck, self.polar = arrow, duck, polar


TYPES = {
    "utf8": Type(pa.string(), "VARCHAR", polars.String),
    "bool": Type(pa.bool_(), "BOOLEAN", polars.Boolean),
    "int32": Type(pa.int32(), "INTEGER", polars.Int32),
    "int64": Type(pa.int64(), "BIGINT", polars.Int64),
    "float64": Type(pa.float64(), "DOUBLE", polars.Float64),
    "timestamp[us, UTC]": Type(pa.timestamp("us", "UTC"), "TIMESTAMP WITH TIME ZONE", polars.Datetime("us", "UTC")),
    "list<float64>": Type(pa.list_(pa.float64()), "DOUBLE[]", polars.List(polars.Float64)),
    "list<int32>": Type(pa.list_(pa.int32()), "INTEGER[]", polars.List(polars.Int32)),
}


def type_name(t):
    """The name in TYPES of an Arrow type, or None where no table may have it."""
    if pa.types.is_large_string(t):
        return "utf8"
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        inner = type_name(t.value_type)
        return f"list<{inner}>" if f"list<{inner}>" in TYPES else None
    return next((name for name, known in TYPES.items() if known.arrow == t), None)


def declared_name(text):
    """The name in TYPES of a type as columns.parquet spells it: Arrow's names in Go or in Python."""
    text = text.replace(", nullable", "").replace("tz=", "")
    text = re.sub(r"list<\w+: (.*)>", r"list<\1>", text)
    for old, new in (("string", "utf8"), ("double", "float64")):
        text = text.replace(old, new)
    return text if text in TYPES else None


DUCK = duckdb.connect(config={"threads": 1})
DUCK.execute("SET TimeZone = 'UTC'")


class Checker:
    def __init__(self):
        self.broken = []
        self.schemas = {}  # table -> [(path, Arrow schema)]
        self.rows = self.columns = 0

    def fail(self, where, what):
        self.broken.append(f"{where}: {what}")

    # One run.

    def run(self, folder):
        files = {p.stem: p for p in sorted(folder.glob("*.parquet"))}
        for name in TABLES:
            if name not in files:
                self.fail(folder, f"has no {name}.parquet")
        declared = self.declarations(files.get("columns"))
        run_ids = set()
        for name in sorted(files, key=lambda n: (n not in TABLES, TABLES.index(n) if n in TABLES else 0, n)):
            table = self.table(files[name], declared)
            if table is not None and "run_id" in table.column_names:
                run_ids |= set(table["run_id"].to_pylist())
        for table in sorted({t for t, _ in declared} - set(files)):
            self.fail(folder, f"columns.parquet describes {table}.parquet, which is not there")
        if len(run_ids) > 1:
            self.fail(folder, f"its tables name {len(run_ids)} runs: {sorted(map(str, run_ids))}")

    def declarations(self, path):
        """(table, column) -> (type or None, unit, meaning)."""
        if path is None:
            return {}
        try:
            rows = pq.read_table(path).to_pylist()
        except Exception as e:  # reported again, with its reader's name, by table()
            self.fail(path, f"unreadable: {first_line(e)}")
            return {}
        out = {}
        for row in rows:
            missing = [c for c in ("table", "column", "meaning") if not row.get(c)]
            if missing:
                self.fail(path, f"a row without {', '.join(missing)}: {row}")
                continue
            if row.get("type") and declared_name(row["type"]) is None:
                self.fail(path, f"{row['table']}.{row['column']} has type {row['type']!r}, which no table may have")
            out[row["table"], row["column"]] = (row.get("type"), row.get("unit") or "", row["meaning"])
        return out

    # One file.

    def table(self, path, declared):
        name = path.stem
        try:
            schema = pq.read_schema(path)
            truth = pq.read_table(path)
        except Exception as e:
            self.fail(path, f"pyarrow cannot read it: {first_line(e)}")
            return None
        self.schemas.setdefault(name, []).append((path, schema))
        for c in ("run_id", "schema_version"):
            if c not in truth.column_names:
                self.fail(path, f"has no column {c}")
        types = {}
        for field in schema:
            types[field.name] = self.column(path, field, truth[field.name], declared)
        if declared:
            for table, column in declared:
                if table == name and column not in types:
                    self.fail(path, f"{column} is in columns.parquet but not in the table")
        self.statistics(path, truth)
        known = {c: TYPES[t] for c, t in types.items() if t}
        readers = [("pandas", read_pandas), ("DuckDB", read_duckdb), ("Polars", read_polars)]
        for reader, read in readers:
            try:
                shown, got = read(path)
            except Exception as e:
                self.fail(path, f"{reader} cannot read it: {first_line(e)}")
                continue
            self.agree(path, reader, shown, got, truth, known)
        self.keys(path, truth)
        if name == "points":
            self.points(path, truth)
        self.rows += truth.num_rows
        self.columns += truth.num_columns
        print(f"{path}: {truth.num_rows} rows of {truth.num_columns} columns, read by pyarrow, pandas, DuckDB and Polars")
        return truth

    def column(self, path, field, values, declared):
        """Checks one column and returns its type's name in TYPES."""
        where = f"{path}: {field.name}"
        if not re.fullmatch(r"[a-z][a-z0-9_]*", field.name):
            self.fail(where, "the name is not snake_case")
        name = type_name(field.type)
        if name is None:
            self.fail(where, f"has type {field.type}; a table may have {', '.join(TYPES)}")
        if declared:
            if (path.stem, field.name) not in declared:
                self.fail(where, "is not in columns.parquet")
            else:
                text, unit, meaning = declared[path.stem, field.name]
                if text and name != declared_name(text):
                    self.fail(where, f"has type {field.type}, columns.parquet says {text}")
                meta = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
                if meta.get("unit", "") != unit or meta.get("description", "") != meaning:
                    self.fail(where, f"metadata says {meta.get('unit')!r}, {meta.get('description')!r}; columns.parquet says {unit!r}, {meaning!r}")
        flat = values.combine_chunks()
        while pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type):
            if field.type == flat.type and flat.flatten().null_count:
                self.fail(where, "has a null inside a list")
            flat = flat.flatten()
        if pa.types.is_floating(flat.type):
            for bad, test in (("NaN", pc.is_nan), ("infinite", pc.is_inf)):
                n = pc.sum(test(flat)).as_py()
                if n:
                    self.fail(where, f"{n} values are {bad}; absent is null")
        elif pa.types.is_integer(flat.type):
            n = pc.sum(pc.equal(flat, pa.scalar(-1, flat.type))).as_py() if pa.types.is_signed_integer(flat.type) else 0
            if n:
                self.fail(where, f"{n} values are -1; absent is null")
        return name

    def statistics(self, path, truth):
        """The file's own counts, by which other readers skip row groups."""
        meta = pq.ParquetFile(path).metadata
        if meta.num_rows != truth.num_rows:
            self.fail(path, f"its footer says {meta.num_rows} rows, it has {truth.num_rows}")
        nulls = {}
        for g in range(meta.num_row_groups):
            for c in range(meta.num_columns):
                chunk = meta.row_group(g).column(c)
                stats = chunk.statistics
                if "." not in chunk.path_in_schema and stats is not None and stats.has_null_count:
                    nulls[chunk.path_in_schema] = nulls.get(chunk.path_in_schema, 0) + stats.null_count
        for column, n in nulls.items():
            if n != truth[column].null_count:
                self.fail(f"{path}: {column}", f"its statistics say {n} nulls, it has {truth[column].null_count}")

    def agree(self, path, reader, shown, got, truth, known):
        if list(shown) != truth.column_names:
            self.fail(path, f"{reader} shows columns {list(shown)}, pyarrow {truth.column_names}")
            return
        if got.num_rows != truth.num_rows:
            self.fail(path, f"{reader} reads {got.num_rows} rows, pyarrow {truth.num_rows}")
            return
        for c, t in known.items():
            where = f"{path}: {c}"
            want = {"pandas": t.arrow, "DuckDB": t.duck, "Polars": t.polar}[reader]
            if shown[c] != want:
                self.fail(where, f"{reader} shows type {shown[c]}, want {want}")
                continue
            a, b = truth[c].cast(t.arrow), got[c].cast(t.arrow)
            if a.null_count != b.null_count:
                self.fail(where, f"{reader} reads {b.null_count} nulls, pyarrow {a.null_count}")
            elif not a.equals(b) and not has_nan(a):
                self.fail(where, f"{reader} reads other values than pyarrow")

    def keys(self, path, truth):
        key = KEYS.get(path.stem)
        if key is None:
            return
        missing = [c for c in key if c not in truth.column_names]
        if missing:
            self.fail(path, f"has no key column {', '.join(missing)}")
            return
        twice = [row for row in truth.select(key).group_by(key).aggregate([([], "count_all")]).to_pylist() if row["count_all"] > 1]
        if twice:
            n = twice[0].pop("count_all")
            self.fail(path, f"{len(twice)} keys more than once; {n} rows have {twice[0]}")

    def points(self, path, truth):
        if "status" not in truth.column_names:
            self.fail(path, "has no column status")
            return
        status = truth["status"].to_pylist()
        for s in sorted({str(s) for s in status} - POINT_STATUS):
            self.fail(path, f"a point has status {s}")
        for raw in (c for c in truth.column_names if c.endswith("_raw")):
            value = raw.removesuffix("_raw")
            if value not in truth.column_names:
                self.fail(path, f"has {raw} but no {value}")
                continue
            for s, v in zip(status, truth[value].to_pylist()):
                if s != "ok" and v is not None:
                    self.fail(f"{path}: {value}", f"is {v} for a point that is {s}")
                    break

    # All runs together.

    def union(self):
        for name, files in self.schemas.items():
            types = {}
            for path, schema in files:
                for f in schema:
                    first, other = types.setdefault(f.name, (f.type, path)), f.type
                    if first[0] != other:
                        self.fail(f"{path}: {f.name}", f"has type {other}, in {first[1]} {first[0]}")
            paths = [str(p) for p, _ in files]
            rows = sum(pq.read_metadata(p).num_rows for p in paths)
            readers = {"DuckDB": union_duckdb, "Polars": union_polars, "pyarrow": union_arrow}
            for reader, read in readers.items():
                seen = []
                for order in (paths, paths[::-1]):
                    try:
                        got_rows, shown = read(order)
                    except Exception as e:
                        self.fail(name, f"{reader} cannot read {len(paths)} runs as one: {first_line(e)}")
                        continue
                    if got_rows != rows:
                        self.fail(name, f"{reader} reads {got_rows} rows from {len(paths)} runs, want {rows}")
                    if set(shown) != set(types):
                        self.fail(name, f"{reader} over {len(paths)} runs misses {sorted(set(types) - set(shown))}")
                    seen.append(shown)
                if len(seen) == 2 and seen[0] != seen[1]:
                    changed = sorted(c for c in seen[0] if seen[0][c] != seen[1].get(c))
                    self.fail(name, f"{reader}: types of {changed} depend on the order of the files")


def read_pandas(path):
    pandas.read_parquet(path, engine="pyarrow")  # as most people call it; nulls of integers become NaN there
    frame = pandas.read_parquet(path, engine="pyarrow", dtype_backend="pyarrow")
    shown = {c: small(t.pyarrow_dtype) for c, t in frame.dtypes.items()}
    return shown, pa.Table.from_pandas(frame, preserve_index=False)


def read_duckdb(path):
    return duckdb_table([path])


def read_polars(path):
    frame = polars.read_parquet(path)
    return dict(frame.schema), frame.to_arrow()


def duckdb_table(paths):
    rows = DUCK.read_parquet([str(p) for p in paths], union_by_name=True)
    return dict(zip(rows.columns, map(str, rows.dtypes))), rows.to_arrow_table()


def union_duckdb(paths):
    shown, rows = duckdb_table(paths)
    return rows.num_rows, shown


def union_polars(paths):
    frames = [polars.scan_parquet(p) for p in paths]
    frame = polars.concat(frames, how="diagonal").collect()
    return frame.height, dict(frame.schema)


def union_arrow(paths):
    table = pa.concat_tables([pq.read_table(p) for p in paths], promote_options="default")
    return table.num_rows, {f.name: f.type for f in table.schema}


def small(t):
    """An Arrow type as TYPES spells it: without large offsets and child names."""
    name = type_name(t)
    return TYPES[name].arrow if name else t


def has_nan(values):
    flat = values.combine_chunks()
    while pa.types.is_list(flat.type):
        flat = flat.flatten()
    return pa.types.is_floating(flat.type) and bool(pc.any(pc.is_nan(flat)).as_py())


def first_line(e):
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"


def main(args):
    folders = [Path(a) for a in args]
    wrong = [f for f in folders if not f.is_dir()]
    if not folders or wrong:
        print("\n".join([f"check_tables: {f} is no folder" for f in wrong] or [__doc__.split("\n\n")[1].strip()]), file=sys.stderr)
        return 2
    checker = Checker()
    for folder in folders:
        checker.run(folder)
    checker.union()
    for line in checker.broken:
        print(f"check_tables: {line}", file=sys.stderr)
    files = sum(len(f) for f in checker.schemas.values())
    print(f"{len(folders)} runs, {files} tables, {checker.rows} rows, {checker.columns} columns; each of {len(checker.schemas)} tables as one data set in both orders; {len(checker.broken)} promises broken")
    return 1 if checker.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
