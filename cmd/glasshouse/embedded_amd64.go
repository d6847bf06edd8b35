package main

import "embed"

//go:embed all:embedded/amd64
var embedded embed.FS
