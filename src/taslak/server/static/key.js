/** The dialog that asks for the API key. */

import { askWith, forgetKey, hasKey } from "./api.js";
import { $, fill } from "./dom.js";

const SENDABLE = /^[\x21-\x7e]+$/;  // what a header can carry

/** Ask when a request needs it; `changed` is called after a key was given or forgotten. */
export function prepareKey(changed) {
  const dialog = $("key"), text = $("key-text");

  askWith((refused) => new Promise((resolve) => {
    const question = refused ? "The server did not accept that key." : "This server asks for an API key.";
    fill($("key-words"), question);
    text.value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      const key = dialog.returnValue === "use" ? text.value.trim() : null;
      text.value = "";
      resolve(key);
      if (key !== null) setTimeout(changed);  // once it is kept
    }, { once: true });
    dialog.showModal();
    text.focus();
  }));

  $("key-form").addEventListener("submit", (submit) => {
    submit.preventDefault();
    if (SENDABLE.test(text.value.trim())) dialog.close("use");
    else fill($("key-words"), "A key is made of letters, digits and signs, without spaces.");
  });
  $("key-cancel").addEventListener("click", () => dialog.close(""));
  $("forget").addEventListener("click", () => {
    forgetKey();
    changed();
  });
}

/** The button that forgets it is there while there is one. */
export const showKey = () => { $("forget").hidden = !hasKey(); };
