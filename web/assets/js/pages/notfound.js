// SPDX-License-Identifier: Apache-2.0
import { start } from '../shell.js';

start();
