// Package mutants breaks the library on purpose, one promise at a time, and runs the tests that
// must detect it. This shows what the tests catch. A mutant is a change of source text, which the
// compiler's -overlay applies; the source files do not change. Every test run checks that each
// mutant still applies. To run them:
//
//	go test ./mutants -mutants . -timeout 3h
package mutants
