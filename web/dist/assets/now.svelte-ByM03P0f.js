import{aF as e}from"./index-D1Ys5PsV.js";const n=e(r=>{const t=setInterval(r,1e3);return()=>clearInterval(t)});function o(){return n(),Date.now()}export{o as n};
