// Package faults breaks things around clients: it runs clients in processes of their own, which it kills and freezes
// ([Process]), freezes and delays their connections ([Proxy]), and keeps a [Fleet] of them under a random stream of faults from a
// table, while package oracle watches. [Effects] writes under Guard what a zombie must not write.
package faults
