module github.com/relaax/rlx-go

go 1.19
