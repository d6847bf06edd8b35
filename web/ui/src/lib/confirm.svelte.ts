// A question that must be answered before something is done that cannot be
// undone. One at a time.
export interface Question {
  title: string;
  text: string;
  does: string; // what the button says
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
