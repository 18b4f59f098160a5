// Talking to the server that this page came from: addresses relative to it, the key of the tab, and errors with their words.

const KEY = "limelight.api-key";
const ROOT = new URL("../", import.meta.url);

/** An answer that is none. */
export class ServerError extends Error {
  /** From the `error` object of an answer; faults of the server name the request, for its log. */
  constructor(status, error) {
    const message = error?.message ?? `The server answered ${status}`;
    super(status >= 500 && error?.request_id ? `${message} (${error.request_id})` : message);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

/** A key that the reader has given is kept until the tab is closed. */
export const key = {
  given: () => sessionStorage.getItem(KEY) !== null,
  keep: (value) => sessionStorage.setItem(KEY, value),
};

/** The response to a request that succeeds. Throws a `ServerError` for every other, and what `fetch` throws. */
export async function request(path, options = {}) {
  const value = sessionStorage.getItem(KEY);
  const headers = {
    "content-type": "application/json",
    ...options.headers,
    ...(value ? { authorization: `Bearer ${value}` } : {}),
  };
  const response = await fetch(new URL(path, ROOT), { ...options, headers });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(response.status, body?.error);
}
