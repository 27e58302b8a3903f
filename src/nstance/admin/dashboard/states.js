// The states of instances: each has a color, a shape and a word, so that no state is shown by color alone.
export const STATES = {
  ready: { word: "ready", tone: "good", shape: "solid" },
  outdated: { word: "outdated", tone: "good", shape: "dot" },
  starting: { word: "starting", tone: "info", shape: "hollow" },
  pending: { word: "pending", tone: "info", shape: "dashed" },
  "not-ready": { word: "not ready", tone: "warn", shape: "bar" },
  suspect: { word: "unresponsive", tone: "bad", shape: "bang" },
  draining: { word: "draining", tone: "leave", shape: "half" },
  deleting: { word: "deleting", tone: "gone", shape: "cross" },
  failed: { word: "failed", tone: "bad", shape: "cross" },
  deleted: { word: "deleted", tone: "gone", shape: "cross" },
};
export const ORDER = Object.keys(STATES);

export function shortHash(hash) {
  return hash ? hash.replace("sha256:", "").slice(0, 12) : "";
}

// The state to show. `revision`: the current one of its group, if it is known.
export function stateOf(instance, revision) {
  if (instance.state !== "running") return STATES[instance.state] ? instance.state : "pending";
  if (instance.suspect) return "suspect";
  if (!instance.ready) return "not-ready";
  return revision && instance.revision && !instance.on_demand && shortHash(instance.revision) !== revision
    ? "outdated"
    : "ready";
}

export function counts(instances, revisions) {
  const found = {};
  for (const each of instances) {
    const state = stateOf(each, revisions && revisions.get(each.group));
    found[state] = (found[state] || 0) + 1;
  }
  return found;
}
