module github.com/deeplearninc/relaax/protocol/clients/go

go 1.19
