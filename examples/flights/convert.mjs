#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
//
// Writes three million US flights of the first half of 2001 as tables for examples/flights.textproto.
//
// The flights are flights-3m.parquet of the npm package vega-datasets, from the on-time statistics of the US Bureau
// of Transportation Statistics: date, delay in minutes, distance in miles, origin and destination. `date` is
// evidently the actual departure, not the plan: of the flights at two and three at night, two thirds are late. So the label is
// predicted at the departure.
//
// The test data are every tenth flight, by a hash of all columns but the delay. They share their days with the
// training data: the task is to interpolate (how late is this airport today?), not to predict the days to come.
//
// The output is the same on every machine: rows in the order of the package's file, and numbers with 4 decimals.

import {createWriteStream, existsSync, mkdirSync, renameSync, rmSync} from 'node:fs';
import {once} from 'node:events';
import {join} from 'node:path';
import {fileURLToPath} from 'node:url';

const PACKAGES = 'vega-datasets@3.2.1 hyparquet@1.31.5 hyparquet-compressors@1.1.2';
const INSTALL = `npm install --no-save --prefix examples/flights ${PACKAGES}`;
const USAGE = `Usage: node examples/flights/convert.mjs DIR

Writes DIR/train.csv and DIR/test.csv, about 2.7 and 0.3 million rows. Install the packages that it reads with first:
  ${INSTALL}
  --help   prints this text
`;
// A flight is late if its delay is more than this.
const LATE_MINUTES = 15;
const TEST_EVERY = 10;
const COLUMNS = ['date', 'delay', 'distance', 'origin', 'destination'];

class Problem extends Error {}

// The columns of the tables: the label, numbers, then ids. A cross is one id for each pair of values.
const TABLE = {
  label: (f) => (f.delay > LATE_MINUTES ? 1 : 0),
  log_distance: (f) => Math.log(f.distance).toFixed(4),
  day_sine: (f) => Math.sin(turn(f.minute, 1440)).toFixed(4),
  day_cosine: (f) => Math.cos(turn(f.minute, 1440)).toFixed(4),
  year_sine: (f) => Math.sin(turn(f.dayOfYear, 365)).toFixed(4),
  year_cosine: (f) => Math.cos(turn(f.dayOfYear, 365)).toFixed(4),
  origin: (f) => f.origin,
  destination: (f) => f.destination,
  route: (f) => f.route,
  hour: (f) => f.hour,
  weekday: (f) => f.weekday,
  day: (f) => f.day,
  time: (f) => f.minute,
  origin_hour: (f) => `${f.origin}-${f.hour}`,
  destination_hour: (f) => `${f.destination}-${f.hour}`,
  route_hour: (f) => `${f.route}-${f.hour}`,
  route_quarter: (f) => `${f.route}-${Math.floor(f.minute / 15)}`,
  route_time: (f) => `${f.route}-${Math.floor(f.minute / 5)}`,
  origin_day: (f) => `${f.origin}-${f.day}`,
  destination_day: (f) => `${f.destination}-${f.day}`,
  route_day: (f) => `${f.route}-${f.day}`,
  day_hour: (f) => `${f.day}-${f.hour}`,
  origin_day_hour: (f) => `${f.origin}-${f.day}-${f.hour}`,
  destination_day_hour: (f) => `${f.destination}-${f.day}-${f.hour}`,
};

function turn(part, whole) {
  return (2 * Math.PI * part) / whole;
}

function parseArguments(words) {
  if (words.includes('--help') || words.includes('-h')) {
    process.stdout.write(USAGE);
    process.exit(0);
  }
  const unknown = words.find((word) => word.startsWith('-'));
  if (unknown !== undefined || words.length !== 1) {
    const got = unknown === undefined ? `${words.length} arguments, want 1: the folder` : `unknown option ${unknown}`;
    process.stderr.write(`${USAGE}error: ${got}\n`);
    process.exit(2);
  }
  return words[0];
}

async function importPackage(name) {
  try {
    return await import(name);
  } catch (error) {
    if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error;
    throw new Problem(`package ${name}: got none, want it in examples/flights/node_modules:\n  ${INSTALL}`);
  }
}

// Path of the package's file, which its `exports` may hide from import.
function flightsPath() {
  const path = fileURLToPath(new URL('node_modules/vega-datasets/data/flights-3m.parquet', import.meta.url));
  if (existsSync(path)) return path;
  throw new Problem(`package vega-datasets: got no file ${path}, want one:\n  ${INSTALL}`);
}

// The flight of a row, with what the columns are made from.
function flightOf(row, number) {
  if (row.some((value) => value === null || value === undefined)) {
    throw new Problem(`flight ${number}: got a missing value, want ${COLUMNS.join(', ')}`);
  }
  const [date, delay, distance, origin, destination] = row;
  const day = date.toISOString().slice(5, 10).replace('-', '');
  const minute = date.getUTCHours() * 60 + date.getUTCMinutes();
  return {
    delay: Number(delay),
    distance: Number(distance),
    origin,
    destination,
    route: `${origin}${destination}`,
    day,
    dayOfYear: Math.floor((date.getTime() - Date.UTC(date.getUTCFullYear(), 0, 1)) / 86400000),
    weekday: date.getUTCDay(),
    minute,
    hour: date.getUTCHours(),
    known: `${date.getTime() / 60000} ${distance} ${origin} ${destination}`,
  };
}

// FNV-1a with the last steps of MurmurHash3, so that its low digits are even.
function hash(text) {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

// A table that gets its name once it is whole.
class Table {
  constructor(path) {
    this.path = path;
    this.rows = 0;
    this.late = 0;
    this.lines = [Object.keys(TABLE).join(',') + '\n'];
    this.stream = createWriteStream(`${path}.part`);
    this.failed = once(this.stream, 'error').then(([error]) => Promise.reject(error));
    this.failed.catch(() => {});
  }

  add(flight) {
    const values = Object.values(TABLE).map((value) => value(flight));
    this.rows += 1;
    this.late += values[0];
    this.lines.push(values.join(',') + '\n');
  }

  async flush() {
    const drained = this.stream.write(this.lines.join('')) || once(this.stream, 'drain');
    this.lines = [];
    await Promise.race([drained, this.failed]);
  }

  async finish() {
    this.stream.end();
    await Promise.race([once(this.stream, 'close'), this.failed]);
    renameSync(`${this.path}.part`, this.path);
  }
}

async function convert(directory) {
  const {asyncBufferFromFile, parquetMetadataAsync, parquetRead} = await importPackage('hyparquet');
  const {compressors} = await importPackage('hyparquet-compressors');
  const file = await asyncBufferFromFile(flightsPath());
  const metadata = await parquetMetadataAsync(file);
  const total = Number(metadata.num_rows);
  mkdirSync(directory, {recursive: true});
  const train = new Table(join(directory, 'train.csv'));
  const test = new Table(join(directory, 'test.csv'));
  const begin = Date.now();
  let rowStart = 0;
  try {
    for (const group of metadata.row_groups) {
      const rowEnd = rowStart + Number(group.num_rows);
      let rows;
      await parquetRead({
        file, metadata, compressors, columns: COLUMNS, rowStart, rowEnd, onComplete: (read) => { rows = read; },
      });
      for (let i = 0; i < rows.length; i++) {
        const flight = flightOf(rows[i], rowStart + i);
        (hash(flight.known) % TEST_EVERY === 0 ? test : train).add(flight);
        if (i % 20000 === 0) await train.flush();
      }
      await train.flush();
      await test.flush();
      rowStart = rowEnd;
      process.stderr.write(`${rowStart} of ${total} flights, ${((Date.now() - begin) / 1000).toFixed(0)} s\n`);
    }
    await train.finish();
    await test.finish();
  } catch (error) {
    for (const table of [train, test]) rmSync(`${table.path}.part`, {force: true});
    throw error;
  }
  for (const table of [train, test]) {
    console.log(`${table.path}: ${table.rows} flights, ${((100 * table.late) / table.rows).toFixed(1)} % late`);
  }
}

try {
  await convert(parseArguments(process.argv.slice(2)));
} catch (error) {
  if (!(error instanceof Problem) && error.code === undefined) throw error;
  process.stderr.write(`error: ${error.message}\n`);
  process.exit(1);
}
