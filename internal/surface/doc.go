// Package surface tests that what docs/stability.md calls stable changes only on purpose.
package surface
