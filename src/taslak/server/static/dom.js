/** Elements, filled with text alone: nothing that comes from the server is ever read as HTML. */

export const $ = (id) => document.getElementById(id);

/** A new element: element("p", { class: "words" }, "text or", anotherElement). */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Set a text, but leave an equal one alone: what a reader has selected stays selected. */
export function fill(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Fill a table: `heads` are its columns' names, `lines` texts by row. Cells are kept and refilled.
 *
 * On a narrow screen rows become blocks (see the style sheet), which would cost them their meaning; hence the
 * roles, and the column's name on every cell.
 */
export function table(node, heads, lines) {
  if (!node.tHead || node.tHead.rows[0].cells.length !== heads.length) {
    node.setAttribute("role", "table");
    const row = element("tr", { role: "row" });
    for (const head of heads) row.append(element("th", { scope: "col", role: "columnheader" }, head));
    node.replaceChildren(
      element("thead", { role: "rowgroup" }, row),
      element("tbody", { role: "rowgroup" }),
    );
  }
  const body = node.tBodies[0];
  while (body.rows.length > lines.length) body.lastChild.remove();
  lines.forEach((line, i) => {
    const row = body.rows[i] ?? body.appendChild(element("tr", { role: "row" }));
    line.forEach((text, j) => {
      const cell = row.cells[j] ?? row.appendChild(element("td", { role: "cell", "data-head": heads[j] }));
      fill(cell, text);
    });
  });
}

/** Set a list of figures: pairs of a name and a text. */
export function figures(list, pairs) {
  pairs.forEach(([name, text], i) => {
    const item = list.children[i] ?? list.appendChild(element("div", {}, element("dt"), element("dd")));
    fill(item.children[0], name);
    fill(item.children[1], text);
  });
}

/** Give a <select> these values; what was chosen stays chosen where it can. */
export function choices(select, names) {
  const before = select.value, old = [...select.options];
  if (old.length === names.length && names.every((name, i) => old[i].value === name)) return;
  select.replaceChildren(...names.map((name) => {
    const option = element("option", {}, name);
    option.value = name;
    return option;
  }));
  if (names.includes(before)) select.value = before;
}
