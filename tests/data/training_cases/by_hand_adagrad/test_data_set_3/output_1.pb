BwJQã
?lyK¿’Z
>