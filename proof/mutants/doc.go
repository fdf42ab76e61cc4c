// Package mutants breaks the library on purpose, one promise at a time, and has the tests find it: what they prove is worth
// as much as what they catch. A mutant is a change of source text, put in place by the compiler's -overlay; the code
// itself knows nothing of it. Every test run checks that each still applies; to run them:
//
//	go test ./mutants -mutants . -timeout 3h
package mutants
