// A Question asks for confirmation before an action that cannot be undone. Only one is
// open at a time.
export interface Question {
  title: string;
  text: string;
  does: string; // the label of the button
  danger?: boolean;
}

class Confirm {
  asked = $state.raw<Question>();
  #answer = (_: boolean) => {};

  ask(question: Question): Promise<boolean> {
    this.#answer(false);
    this.asked = question;
    return new Promise((resolve) => (this.#answer = resolve));
  }

  answer(yes: boolean): void {
    this.asked = undefined;
    this.#answer(yes);
  }
}

export const confirm = new Confirm();
