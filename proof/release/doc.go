// Package release tests that users can install a release.
package release
