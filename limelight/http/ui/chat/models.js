// What the server serves: its models, and what it does with the fields of a request.

import { request } from "../api.js";

const CHAT = "/v1/chat/completions";

/** What `GET /v1/models` and `GET /v1/capabilities` tell. */
export class Server {
  #fields;

  /** `capabilities` is null before they are known: then everything is taken. */
  constructor(models, capabilities) {
    this.models = models;
    this.reasoningSwitch = capabilities?.model.reasoning?.switch ?? null;
    this.callsTools = capabilities === null || capabilities.model.tool_format !== null;
    this.#fields = capabilities?.endpoints.find((endpoint) => endpoint.path === CHAT).fields ?? null;
  }

  /** Whether the field `name` of a chat request works. */
  takes(name) {
    return this.#fields === null || this.#fields[name]?.effect === "works";
  }

  /** The id of the model that answers: the wanted one if it is served, else the first. */
  model(wanted) {
    return this.models.includes(wanted) ? wanted : this.models[0];
  }
}

export const NO_SERVER = new Server([], null);

export async function askServer() {
  const [list, capabilities] = await Promise.all(
    ["v1/models", "v1/capabilities"].map(async (path) => (await request(path)).json()),
  );
  return new Server(list.data.map((model) => model.id), capabilities);
}
