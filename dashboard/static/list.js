// A list that the page reads in pages of rows, again while it is shown.

import { button, fill, keyed, make, plain, scroll, setText } from "./dom.js";
import { reading } from "./state.js";
import { count } from "./words.js";

const again = 5000; // milliseconds between two reads

// newList shows the rows of a question. query returns its parameters, keyOf identifies a row, next returns from
// where the page after a row begins, and update fills a row. pages has the starts of the pages up to this one.
export function newList({ path, table, query, keyOf, next, update, empty = "The list is empty." }) {
  const note = make("p", "note");
  note.setAttribute("role", "status");
  const turns = make("p", "pages");
  const list = { pages: [""], element: make("div", "list", make("div", "card", scroll(table)), note, turns) };
  const read = reading(path, () => ({ ...query(), after: list.pages.at(-1) }), again, told => {
    const rows = told.rows || [];
    const asked = JSON.stringify(query());
    if (told.rows) keyed(table.tBodies[0], rows, r => asked + keyOf(r), () => make("tr"), update);
    const end = rows.length > 0 ? endOf(list, told) : told.more ? "No match up to here, and there are more." : empty;
    setText(note, told.text ? "This cannot be read: " + plain(told.text) : end);
    const choices = [];
    if (list.pages.length > 1) choices.push(["First page", () => list.first()]);
    const after = told.more && (told.next || next(rows.at(-1))); // a page without rows says where the next begins
    if (told.more) {
      choices.push(["Next page", () => {
        list.pages.push(after);
        read.now();
      }]);
    }
    const buttons = choices.flatMap(([text, press]) => [button(text, press), " "]);
    // With where the next page begins, because the rows of this page may change.
    fill(turns, JSON.stringify([list.pages, after]), ...buttons);
  });
  list.first = () => {
    list.pages = [""];
    read.now();
  };
  return list;
}

// endOf says where a page of rows ends. The server finds no more than 1,000 rows of some filters.
function endOf(list, told) {
  const full = list.pages.length === 20 && told.rows.length === 50;
  const end = told.more ? ", and there are more." : full ? ". No more than 1,000 are found." : ".";
  return "Page " + count(list.pages.length) + end;
}
