// SPDX-License-Identifier: Apache-2.0

// Command etcd is the stock etcd server; upstream keeps its main package in a
// module that cannot be required, so the test bed calls the library's entry.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
