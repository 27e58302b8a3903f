// The fleet as it is now: a snapshot and then changes, over one stream that reconnects by itself.
import { useEffect, useState } from "./ui.js";

const MAX_EVENTS = 2000;
const QUIET_SECONDS = 25; // the server sends something every ten seconds

class Store {
  constructor() {
    this.shards = new Map();
    this.groups = new Map(); // by shard/name
    this.instances = new Map(); // by ID
    this.byGroup = new Map(); // by shard/name: a map of instances by ID
    this.alarms = [];
    this.events = []; // oldest first
    this.forgotten = 0; // how many events were there and are not kept any more
    this.connection = "connecting"; // connecting, live, lost
    this.isLoaded = false;
    this.version = 0;
    this.known = new Set(); // IDs of events
    this.listeners = new Set();
    this.waiting = false;
    this.source = null;
    this.lastMessage = 0;
    this.lastId = "";
    this.onDenied = () => {};
  }

  open() {
    this.close();
    this.source = new EventSource("/v1/watch");
    this.source.addEventListener("snapshot", (message) => this.receive(message, true));
    this.source.addEventListener("change", (message) => this.receive(message, false));
    this.source.addEventListener("missed", (message) => {
      const missed = JSON.parse(message.data);
      if (missed.incomplete.length) this.forgetEvents();
      else this.addEvents(missed.events);
    });
    this.source.onerror = () => {
      this.setConnection("lost");
      if (this.source && this.source.readyState === EventSource.CLOSED) this.onDenied();
    };
    this.watchdog = setInterval(() => {
      if (this.connection === "live" && Date.now() - this.lastMessage > QUIET_SECONDS * 1000) this.open();
    }, 5000);
  }

  close() {
    clearInterval(this.watchdog);
    if (this.source) this.source.close();
    this.source = null;
  }

  receive(message, isSnapshot) {
    const data = JSON.parse(message.data);
    this.lastMessage = Date.now();
    if (isSnapshot) {
      this.shards.clear();
      this.groups.clear();
      this.instances.clear();
      this.byGroup.clear();
      this.isLoaded = true;
    }
    for (const shard of data.shards) this.shards.set(shard.shard, shard);
    for (const group of data.groups) this.groups.set(`${group.shard}/${group.group}`, group);
    for (const instance of data.instances) this.putInstance(instance);
    for (const [shard, name] of data.gone_groups || []) this.groups.delete(`${shard}/${name}`);
    for (const [, id] of data.gone_instances || []) this.dropInstance(id);
    if (data.alarms) this.alarms = data.alarms;
    this.addEvents(data.events);
    this.setConnection("live");
    this.changed();
  }

  putInstance(instance) {
    const before = this.instances.get(instance.id);
    const key = `${instance.shard}/${instance.group}`;
    if (before && `${before.shard}/${before.group}` !== key) this.dropInstance(instance.id);
    this.instances.set(instance.id, instance);
    let members = this.byGroup.get(key);
    if (!members) this.byGroup.set(key, (members = new Map()));
    members.set(instance.id, instance);
    members.version = (members.version || 0) + 1;
  }

  dropInstance(id) {
    const instance = this.instances.get(id);
    if (!instance) return;
    this.instances.delete(id);
    const key = `${instance.shard}/${instance.group}`;
    const members = this.byGroup.get(key);
    members.delete(id);
    members.version += 1;
    if (!members.size) this.byGroup.delete(key);
  }

  addEvents(events) {
    let isOrdered = true;
    for (const event of events) {
      const key = `${event.shard}/${event.id}`;
      if (this.known.has(key)) continue;
      this.known.add(key);
      const last = this.events[this.events.length - 1];
      if (last && last.time > event.time) isOrdered = false;
      this.events.push(event);
    }
    if (!isOrdered) this.events.sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : a.id - b.id));
    if (this.events.length > MAX_EVENTS + 200) {
      const old = this.events.splice(0, this.events.length - MAX_EVENTS);
      for (const event of old) this.known.delete(`${event.shard}/${event.id}`);
      this.forgotten += old.length;
    }
    if (events.length) this.changed();
  }

  // Between those that are kept and the next ones there are others: pages read what they need again.
  forgetEvents() {
    this.forgotten += Math.max(this.events.length, MAX_EVENTS);
    this.events = [];
    this.known.clear();
  }

  setConnection(connection) {
    if (connection === this.connection) return;
    this.connection = connection;
    this.changed();
  }

  // Many messages may come within one frame: pages are drawn once for all of them.
  changed() {
    this.version += 1;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const listener of this.listeners) listener();
    });
  }
}

export const store = new Store();

// Draws a component again after changes, at once and then at most once in `milliseconds`.
export function useStore(milliseconds = 0) {
  const [, setVersion] = useState(0);
  useEffect(() => {
    let timer = null;
    let drawnAt = -Infinity;
    const draw = () => {
      timer = null;
      drawnAt = performance.now();
      setVersion(store.version);
    };
    const listener = () => {
      const wait = drawnAt + milliseconds - performance.now();
      if (timer === null && wait > 0) timer = setTimeout(draw, wait);
      else if (timer === null) draw();
    };
    store.listeners.add(listener);
    setVersion(store.version);
    return () => {
      store.listeners.delete(listener);
      clearTimeout(timer);
    };
  }, [milliseconds]);
  return store;
}
