// What the dialogs with a form have in common.

/** Does what a dialog's button `value` is for; if that is refused, the dialog stays open with its input. */
export function sends(dialog, error, value, act, after, refused = () => {}) {
  let busy = false;
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    if (event.submitter?.value !== value) return;
    event.preventDefault();
    // Once, however often the button is pressed; a disabled button would lose the focus.
    if (busy) return;
    busy = true;
    error.textContent = "";
    try {
      await act();
      dialog.close();
      after();
    } catch (refusal) {
      error.textContent = refusal.message;
      refused(refusal);
    } finally {
      busy = false;
    }
  });
}
