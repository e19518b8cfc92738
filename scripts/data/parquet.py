"""Prints the texts of parquet files as JSON Lines, for `prepare --input - --format jsonl`.

usage: parquet.py [--field text] FILE...
"""

import argparse
import json
import sys

ROWS = 1024


def json_lines(path, field="text"):
    """The column as lines of JSON, in pieces of many lines."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("reading parquet needs pyarrow: pip install pyarrow") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                raise ValueError(f"{path}: expected a column '{field}', got "
                                 f"{', '.join(file.schema_arrow.names)}")
            kind = file.schema_arrow.field(field).type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise ValueError(f"{path}: expected texts in the column '{field}', got {kind}")
            for batch in file.iter_batches(batch_size=ROWS, columns=[field]):
                texts = batch.column(0).to_pylist()
                lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts if text]
                if lines:
                    yield ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"cannot read {path}: {str(error).splitlines()[0]}") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--field", default="text", help="the column that holds the texts")
    arguments = parser.parse_args()
    try:
        for path in arguments.files:
            for piece in json_lines(path, arguments.field):
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.exit(1)
    except ValueError as error:
        sys.exit(f"parquet.py: {error}")


if __name__ == "__main__":
    main()
