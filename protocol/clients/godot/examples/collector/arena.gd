# The picture of an arena.
extends Node2D


func _process(_delta):
	update()


func _draw():
	draw_rect(Rect2(-200, -200, 400, 400), Color(0.13, 0.15, 0.18))
	for coin in $Coins.get_children():
		draw_circle(coin.position, 16, Color(0.95, 0.8, 0.25))
	draw_circle($Body.position, 12, Color(0.35, 0.75, 0.95))
