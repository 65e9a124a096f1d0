"""What the comparisons ask for: code, an edit of a given file, a story."""

FILE = '''"""A small stock-keeping module."""

import csv
from dataclasses import dataclass


@dataclass
class Item:
    name: str
    price: float
    count: int


def load(path):
    """Items of a CSV file with the columns name, price and count."""
    with open(path, newline="") as handle:
        rows = list(csv.DictReader(handle))
    return [Item(row["name"], float(row["price"]), int(row["count"])) for row in rows]


def save(path, items):
    """Write the items back in the same form."""
    with open(path, "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["name", "price", "count"])
        for item in items:
            writer.writerow([item.name, item.price, item.count])


def total(items):
    """Worth of everything in stock."""
    return sum(item.price * item.count for item in items)


def missing(items):
    """Names of the items that are out of stock."""
    return [item.name for item in items if item.count == 0]


def find(items, name):
    """The item of that name, or None."""
    for item in items:
        if item.name == name:
            return item
    return None


def report(items):
    """A few lines for people: the worth and what is missing."""
    lines = [f"worth: {total(items):.2f}"]
    for name in missing(items):
        lines.append(f"missing: {name}")
    return "\\n".join(lines)


def restock(items, name, count):
    """Add to an item's count."""
    item = find(items, name)
    if item is not None:
        item.count += count
'''

PROMPTS = {
    "code": "Write a Python class `Matrix` with addition, multiplication and transpose, and docstrings.",
    "edit": "Rename the function `total` to `worth` everywhere and give back the whole file, nothing "
    f"else.\n\n```python\n{FILE}```",
    "story": "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
}
